"""What `framepack_i2v` may be asked for, and how its picture and its video's parts are made."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from diffusers.video_processor import VideoProcessor
from PIL import Image
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from slipway_cli import options
from slipway_client.results import Assembler, Video
from slipway_serving.families.framepack_i2v.facts import Picture
from slipway_serving.families.framepack_i2v.picture import (
    to_image_encoder_input,
    to_vae_input,
)
from slipway_serving.families.framepack_i2v.request import ImageToVideoRequest, Limits
from slipway_serving.protocol import requests
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.protocol.events import VideoPart
from slipway_serving.protocol.images import pixels
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.video import delivery
from slipway_serving.video.delivery import fragment_parts
from slipway_serving.video.pictures import crop_and_resize

PICTURE = np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8)
PROMPT = "prompt must be some text of at most 16384 characters"
WATCH = Interruption("here", lambda: False)


def asked(**fields: Any) -> ImageToVideoRequest:
    return ImageToVideoRequest(**{"image": PICTURE, "prompt": "a paper boat", **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": b"GIF89a"}, "image must be a PNG, JPEG or WebP file"),
        ({"image": np.zeros((8, 8, 3), np.uint8)}, "image must be 16 to 4096 px a side, got 8x8"),
        ({"prompt": ""}, f"{PROMPT}, got 0 characters; try a sentence that describes what moves"),
        ({"prompt": " \n"}, f"{PROMPT}, got 2 characters"),
        ({"prompt": "x" * 16_385}, f"{PROMPT}, got 16385 characters; try a shorter text"),
        ({"seconds": 0.0}, "seconds must be 0.1 to 120.0, got 0.0; try 0.1"),
        ({"seconds": 121.0}, "seconds must be 0.1 to 120.0, got 121.0; try 120.0"),
        ({"seconds": float("nan")}, "seconds must be 0.1 to 120.0, got nan"),
        ({"order": "vanilla"}, "order must be one of inverted, forward, got 'vanilla'; try inverted"),
        ({"height": 50, "width": 64}, "height must be a multiple of 16 above 0, got 50; try 48"),
        ({"height": 64}, "width must be given with height, got none; try giving both or neither"),
        ({"width": 64}, "height must be given with width, got none"),
        ({"steps": 0}, "steps must be 1 to 100, got 0"),
        ({"guidance_scale": -1.0}, "guidance_scale must be 0 to 1000"),
    ],
)  # fmt: skip
def test_request_is_refused_by_field_when_it_breaks_a_rule(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^framepack_i2v: {re.escape(message)}"):
        asked(**fields)


@pytest.mark.parametrize(
    ("seconds", "sections"), [(0.1, 1), (1.7, 1), (1.9, 2), (3.6, 3), (5.0, 4), (60, 50), (120.0, 100)]
)
def test_seconds_become_the_nearest_number_of_whole_sections(seconds: float, sections: int) -> None:
    request = asked(seconds=seconds, height=32, width=48)
    assert request.sections == sections
    assert request.result_shape() == (36 * sections + 1, 32, 48, 3)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((64, 64), (640, 640)), ((60, 90), (528, 784)), ((160, 90), (848, 480)), ((16, 4000), (48, 10_112))],
)
def test_size_has_the_aspect_of_the_picture_when_none_is_given(
    shape: tuple[int, int], size: tuple[int, int]
) -> None:
    request = asked(image=np.zeros((*shape, 3), np.uint8))
    assert request.size_px == size
    height, width = size
    assert abs(height * width / 640**2 - 1) < 0.2


def test_size_is_refused_when_the_exported_models_cannot_do_it() -> None:
    limits = Limits(height=(32, 96), width=(32, 96))
    asked(height=96, width=32).check_against(limits)
    with pytest.raises(InvalidRequest, match=r"height must be 32 to 96 px.* got 528; .* \| width must be"):
        asked().check_against(limits)


def test_request_crosses_as_tensors_when_its_size_is_left_out() -> None:
    tensors = requests.encode(asked(seconds=2.5))
    assert not {"height", "width", "timeout_s"} & tensors.keys()
    assert requests.decode(ImageToVideoRequest, tensors, "here").result_shape() == (73, 528, 784, 3)


def test_command_leaves_the_size_out_when_it_is_not_given() -> None:
    parameters = {each.name: each for each in options.parameters(ImageToVideoRequest)}
    assert parameters["size"].default is None
    assert parameters["prompt"].default is parameters["prompt"].empty
    (told,) = parameters["size"].annotation.__metadata__
    assert (
        told.help == "Width and height, in pixels; by default, the picture's aspect ratio at about 640x640."
    )
    given = dict.fromkeys(parameters)
    assert options.values(ImageToVideoRequest, given) == {}
    assert options.values(ImageToVideoRequest, {**given, "size": "48x32"}) == {"width": 48, "height": 32}


def test_command_says_how_it_changed_the_picture(tmp_path: Path) -> None:
    file, said = tmp_path / "wide.bmp", list[str]()
    Image.new("RGB", (5000, 32), "red").save(file)
    given = {**dict.fromkeys(each.name for each in options.parameters(ImageToVideoRequest)), "image": file}
    sent = options.values(ImageToVideoRequest, given, said.append)["image"]
    assert pixels(sent).shape == (26, 4096, 3)
    assert said == [f"{file}: converted from BMP, shrunk from 5000x32 to 4096x26; sent as a PNG"]


def test_picture_equals_diffusers_when_it_has_the_aspect_of_the_video() -> None:
    processor = VideoProcessor(vae_scale_factor=8)
    expected = processor.preprocess(Image.fromarray(PICTURE), 32, 48)
    fit = crop_and_resize(PICTURE, (32, 48))
    np.testing.assert_allclose(to_vae_input(fit)[:, :, 0], expected.numpy(), atol=1e-6)
    extractor = SiglipImageProcessorPil(size={"height": 56, "width": 56})
    upstream = extractor(images=(expected + 1) / 2, return_tensors="np", do_rescale=False)["pixel_values"]
    made = to_image_encoder_input(fit, Picture(56, (0.5,) * 3, (0.5,) * 3, 3))
    assert made.dtype == np.float32 and made.shape == (1, 3, 56, 56)
    # A pixel may be one level less there, two after the filter: 8 bits become floats and are cut to 8 again.
    np.testing.assert_allclose(made, upstream, atol=4.1 / 255)


def test_picture_is_cut_around_its_middle_when_the_video_has_another_aspect() -> None:
    wide = np.zeros((32, 96, 3), np.uint8)
    wide[:, 32:64] = 200
    np.testing.assert_allclose(crop_and_resize(wide, (16, 16)), 200, atol=12)


def parts_of(frames: np.ndarray[Any, Any], cuts: list[int], *, as_text: bool = False) -> list[VideoPart]:
    """Return the parts of a video whose runs come last first."""
    made: list[VideoPart] = []
    for start, end in reversed(list(zip(cuts, [*cuts[1:], len(frames)], strict=True))):
        run = frames[start:end]
        made += fragment_parts(run, start, len(made), 30, len(frames), WATCH, as_text=as_text)
    return made


def joined(parts: list[VideoPart], output: str = "video") -> Video:
    assembler = Assembler(asked(output=output), "framepack_i2v")
    for part in parts:
        assert assembler.add(part) is None
    (video,) = assembler.results()
    assert isinstance(video, Video)
    return video


@pytest.mark.parametrize("output", ["video", "video_base64"])
def test_video_is_in_time_order_when_its_fragments_come_in_another(output: str) -> None:
    frames = np.repeat(np.arange(0, 240, 12, dtype=np.uint8), 48 * 32 * 3).reshape(20, 32, 48, 3)
    parts = parts_of(frames, [0, 7, 12], as_text=output.endswith("base64"))
    assert [part.first_frame for part in parts] == [12, 7, 0]
    with av.open(io.BytesIO(joined(parts, output).data)) as container:
        stream = container.streams.video[0]
        decoded = list(container.decode(stream))
        assert stream.average_rate == 30
    times = [frame.pts * frame.time_base for frame in decoded]
    assert [round(time * 30) for time in times] == list(range(20))
    shown = np.array([frame.to_ndarray(format="rgb24").mean() for frame in decoded])
    np.testing.assert_allclose(shown, frames[:, 0, 0, 0], atol=3)


def test_video_is_refused_when_a_fragment_is_missing() -> None:
    frames = np.zeros((9, 32, 48, 3), np.uint8)
    parts = parts_of(frames, [0, 3, 6])
    for index in range(3):
        with pytest.raises(Unrecoverable, match="video must have each of its 9 frames once, got"):
            joined([part for part in parts if part is not parts[index]])


def test_fragments_are_cut_when_one_would_be_too_large_for_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "CHUNK_BYTES", 5_000)
    noise = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), np.uint8)
    parts = parts_of(noise, [0])
    assert len(parts) > 1 and [part.chunk for part in parts] == list(range(len(parts)))
    assert all(len(part.video) <= 5_000 or part.part_frames == 1 for part in parts)
    assert sum(part.part_frames or 0 for part in parts) == 6
    with av.open(io.BytesIO(joined(parts).data)) as container:
        assert len(list(container.decode(video=0))) == 6
