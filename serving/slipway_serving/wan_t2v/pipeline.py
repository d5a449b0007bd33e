"""The program wan_t2v: a text becomes a video, step by step, as a generator of events.

encode_prompts -> denoise (one Progress per step) -> decode (latent by latent) -> deliver (frames as they
come, or the MP4 that was encoded meanwhile). Every model is reached through ``models``, so the same loop runs
in Triton, in process and in tests. Between any two pieces of work the watch may end it; whatever the end, the
decoder is told to free what it holds, and so are denoisers with a cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.errors import InvalidRequest, Unrecoverable
from slipway_serving.events import BASE64, Event, FramesPart, Progress, VideoPart, tensors
from slipway_serving.media import FrameChunks, Mp4Encoder, base64_chunks, byte_chunks
from slipway_serving.metrics import DENOISE_STEP, FRAMES, Recorder
from slipway_serving.program import Call, Models, Responses, Settings, Tensors, one_text
from slipway_serving.requests import decode as decode_request
from slipway_serving.turns import Session, Turn, Turns
from slipway_serving.wan_t2v.cache import FirstBlockCache
from slipway_serving.wan_t2v.denoise import denoise, latent_shape, make_scheduler, preview
from slipway_serving.wan_t2v.facts import PipelineFacts
from slipway_serving.wan_t2v.request import TextToVideoRequest
from slipway_serving.watch import Watch

Frames = NDArray[np.uint8]


class TextToVideo:
    """Answers text-to-video requests, see :func:`generate`."""

    reports_requests = True

    def __init__(self, settings: Settings) -> None:
        # The scheduler's arithmetic is small; the cores belong to the denoisers.
        torch.set_num_threads(1)
        self._model = settings.model
        self._facts = PipelineFacts.read(settings.folder / "pipeline.json")
        make_scheduler(self._facts.scheduler, None)
        self._recorder = settings.recorder
        self._recorder.declare(DENOISE_STEP, FRAMES)

    def run(self, call: Call) -> Responses:
        """Yield the responses to a request; see :func:`generate`."""
        request = decode_request(TextToVideoRequest, call.tensors, self._model)
        limit_s = call.limit_s if request.timeout_s is None else request.timeout_s
        watch = Watch(self._model, call.is_cancelled, limit_s)
        events = generate(request, self._facts, call.models, watch, self._recorder)
        with contextlib.closing(events):
            for event in events:
                yield tensors(event)

    def close(self) -> None:
        """Nothing is held."""


def generate(
    request: TextToVideoRequest,
    facts: PipelineFacts,
    models: Models,
    watch: Watch,
    recorder: Recorder | None = None,
) -> Generator[Event, None, None]:
    """Generate a video.

    Args:
        request: what is asked for.
        facts: of the checkpoint.
        models: reach the served models.
        watch: ends the work when the caller gives up or the time is over.
        recorder: takes the seconds of the steps and the number of frames; None where nobody wants them.

    Yields:
        One :class:`Progress` per denoising step, then the chunks of the result.

    Raises:
        InvalidRequest: the request does not fit the exported models; nothing was started.
        Cancelled: the caller gave up.
        DeadlineExceeded: the time limit is passed.
        Unrecoverable: a model gave something impossible.
    """
    recorder = recorder or Recorder()
    request.check_against(facts.limits)
    scheduler = make_scheduler(facts.scheduler, request.flow_shift)
    embeds = encode_prompts(request, facts, models, watch)
    latents = torch.empty(latent_shape(request, facts))
    with _cache(request, models) as cache:
        steps = denoise(request, facts, scheduler, models, embeds, watch, recorder, cache)
        for step, latents in enumerate(steps, 1):
            picture = preview(latents, facts.latent_rgb) if request.preview else None
            yield Progress(step, request.steps, watch.elapsed_s(), picture)
    hit_rate = None if cache is None else cache.hit_rate
    with contextlib.closing(decode(latents.numpy(), facts, models, watch)) as decoded:
        for chunk in deliver(request, _counted(decoded, recorder), watch):
            yield replace(chunk, cache_hit_rate=hit_rate)


def _counted(decoded: Iterator[Frames], recorder: Recorder) -> Iterator[Frames]:
    """Hand decoded frames on and count them."""
    for frames in decoded:
        recorder.count(FRAMES, len(frames))
        yield frames


@contextlib.contextmanager
def _cache(request: TextToVideoRequest, models: Models) -> Iterator[FirstBlockCache | None]:
    """Open the first-block cache of a request, if it asks for one, and have it freed at the end."""
    if request.cache_threshold is None:
        yield None
        return
    with contextlib.closing(FirstBlockCache(models, request.cache_threshold)) as cache:
        yield cache


def encode_prompts(
    request: TextToVideoRequest, facts: PipelineFacts, models: Models, watch: Watch
) -> NDArray[np.float32]:
    """Encode the prompt and, if any step has guidance, the negative prompt.

    Returns:
        [1 or 2, text tokens, width], float32; rows beyond a prompt's own tokens are zero.
    """
    asked = {"prompt": request.prompt}
    if request.guided_steps:
        asked["negative_prompt"] = request.negative_prompt
    embeds = []
    for field, text in asked.items():
        watch.check(f"before encoding {field}")
        try:
            found = models.call(
                facts.models.prompt, {"prompt": one_text(text)}, ["prompt_embeds", "attention_mask"]
            )
        except InvalidRequest as error:
            raise InvalidRequest(f"wan_t2v: {field}: {error}") from error
        tokens = int(found["attention_mask"].sum())
        padded = np.zeros((facts.text_tokens, found["prompt_embeds"].shape[2]), np.float32)
        padded[:tokens] = found["prompt_embeds"][0, :tokens]
        embeds.append(padded)
    return np.stack(embeds)


def decode(
    latents: NDArray[Any], facts: PipelineFacts, models: Models, watch: Watch
) -> Generator[Frames, None, None]:
    """Decode latents one by one, as one session of the decoder.

    One request per latent: a stream between two models of Triton 2.51 cannot carry an error after a response
    (see :class:`slipway_serving.program.Models`), and the watch is asked in between.

    Args:
        latents: [1, channels, latent frames, height / 8, width / 8], float32.
        facts: give the decoder's name.
        models: reach it.
        watch: asked before each latent.

    Yields:
        [1 or 4, height, width, 3], uint8, for each latent.
    """
    model, count = facts.models.vae_decoder, latents.shape[2]

    def send(pieces: Tensors | None, turn: Turn) -> Iterator[dict[str, NDArray[Any]]]:
        return models.stream(model, pieces or {}, ["frames"], turn=turn)

    with Session(send, Turns(numbered=True)) as decoder:
        for index in range(count):
            watch.check(f"before decoding latent {index + 1} of {count}")
            piece = {"latents": np.ascontiguousarray(latents[:, :, index : index + 1])}
            for answer in list(decoder.step(piece, last=index == count - 1)):
                yield answer["frames"]


def deliver(
    request: TextToVideoRequest, decoded: Iterator[Frames], watch: Watch
) -> Iterator[FramesPart | VideoPart]:
    """Turn decoded frames into the chunks of the result.

    Args:
        request: tells the form of the result.
        decoded: frames as they come.
        watch: tells the time.
    """
    if request.output.startswith("frames"):
        yield from _deliver_frames(request, decoded, watch)
        return
    with Mp4Encoder(request.width, request.height, request.fps) as encoder:
        count = 0
        for frames in decoded:
            encoder.add(frames)
            count += len(frames)
        _check_count(request, count)
        video = encoder.finish()
    parts = base64_chunks(video) if request.output == "video_base64" else byte_chunks(video)
    for chunk, part in enumerate(parts):
        yield VideoPart(chunk, len(parts), watch.elapsed_s(), part)


def _deliver_frames(
    request: TextToVideoRequest, decoded: Iterator[Frames], watch: Watch
) -> Iterator[FramesPart | VideoPart]:
    chunks = FrameChunks(request.frames, request.height, request.width)
    chunk = count = sent = 0
    for frames in decoded:
        count += len(frames)
        for pixels in chunks.add(frames):
            part = FramesPart(
                pixels, sent, watch.elapsed_s(), frames_total=request.frames, chunk=chunk, chunks=chunks.count
            )
            yield part.as_text() if request.output.endswith(BASE64) else part
            chunk, sent = chunk + 1, sent + len(pixels)
    _check_count(request, count)


def _check_count(request: TextToVideoRequest, count: int) -> None:
    if count != request.frames:
        raise Unrecoverable(f"wan_t2v: the decoder must give {request.frames} frames, got {count}")
