// @ts-check
/** A picture as text for the message that begins a world, which has at most 4 MiB. */

const LARGEST_BYTES = 2 << 20;
const LONGEST_SIDE_PX = 1280;

/**
 * Return a picture as a data URL; a large one is made smaller first, since a world takes no more of it.
 *
 * @param {File} file
 * @returns {Promise<string>}
 */
export async function pictureText(file) {
  return dataUrl(file.size > LARGEST_BYTES ? await smaller(file) : file);
}

/** @param {File} file @returns {Promise<Blob>} */
async function smaller(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, LONGEST_SIDE_PX / Math.max(bitmap.width, bitmap.height));
  const canvas = new OffscreenCanvas(Math.round(bitmap.width * scale), Math.round(bitmap.height * scale));
  canvas.getContext("2d")?.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.95 });
}

/** @param {Blob} blob @returns {Promise<string>} */
function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
