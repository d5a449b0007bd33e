"""`slipway generate`: flags into a request, a running Triton's answer into a file.

The request and the place of the file are checked before anything is sent. Progress goes to stderr, one line
about the result to stdout. The file appears whole or not at all.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from slipway_client.generation import Protocol
from slipway_serving.errors import Cancelled, InvalidRequest, Unrecoverable
from slipway_serving.fields import fields_of
from slipway_serving.wan_t2v.request import TextToVideoRequest

if TYPE_CHECKING:
    from slipway_client.results import Frames, Video

DEFAULT_URLS = {"grpc": "localhost:8001", "http": "localhost:8000"}
Url = Annotated[
    str | None,
    typer.Option(
        help="Server; by default localhost:8001 for grpc, localhost:8000 for http.", metavar="HOST:PORT"
    ),
]
SpokenProtocol = Annotated[Protocol, typer.Option(help="How to talk to the server.")]
_DEFAULTS = TextToVideoRequest(prompt="")
_FIELDS = {field.name: field for field in fields_of(TextToVideoRequest)}
_SIZE = re.compile(r"(\d+)[x*](\d+)", re.IGNORECASE)

generate = typer.Typer(
    help="Generate with a running server; one command per model family.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _field(name: str, note: str = "") -> Any:
    """Return the option of a request field, its help from the field's own rule."""
    text = _FIELDS[name].rule.help
    return typer.Option(help=f"{text[0].upper()}{text[1:]}{note}.")


@generate.command("wan_t2v")
def wan_t2v(
    prompt: Annotated[str, typer.Argument(help="What the video shows.", metavar="PROMPT")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write: .mp4, or .npy for raw frames (gRPC only).")
    ] = Path("out.mp4"),
    negative_prompt: Annotated[str, _field("negative_prompt")] = _DEFAULTS.negative_prompt,
    frames: Annotated[int, _field("frames")] = _DEFAULTS.frames,
    size: Annotated[
        str, typer.Option(help="Width and height, pixels, multiples of 16.", metavar="WIDTHxHEIGHT")
    ] = f"{_DEFAULTS.width}x{_DEFAULTS.height}",
    steps: Annotated[int, _field("steps")] = _DEFAULTS.steps,
    guidance_scale: Annotated[float, _field("guidance_scale", ", 0 or more")] = _DEFAULTS.guidance_scale,
    guidance_scale_2: Annotated[
        float | None, _field("guidance_scale_2", ", 0 or more; by default as --guidance-scale")
    ] = None,
    guidance_start: Annotated[float, _field("guidance_start")] = _DEFAULTS.guidance_start,
    guidance_stop: Annotated[float, _field("guidance_stop")] = _DEFAULTS.guidance_stop,
    cache_threshold: Annotated[
        float | None, _field("cache_threshold", ", 0 or more; by default all are computed")
    ] = None,
    flow_shift: Annotated[
        float | None, _field("flow_shift", ", above 0; by default the checkpoint's")
    ] = None,
    fps: Annotated[int, _field("fps")] = _DEFAULTS.fps,
    seed: Annotated[int, _field("seed")] = _DEFAULTS.seed,
    timeout: Annotated[float | None, _field("timeout_s", ", above 0; by default none")] = None,
    url: Url = None,
    protocol: SpokenProtocol = "grpc",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Generate a video from a text with Wan."""
    width, height = parse_size(size)
    check_output(output)
    request = TextToVideoRequest(
        prompt=prompt,
        negative_prompt=negative_prompt,
        frames=frames,
        height=height,
        width=width,
        steps=steps,
        guidance_scale=guidance_scale,
        guidance_scale_2=guidance_scale_2,
        guidance_start=guidance_start,
        guidance_stop=guidance_stop,
        cache_threshold=cache_threshold,
        flow_shift=flow_shift,
        fps=fps,
        seed=seed,
        output="frames" if output.suffix == ".npy" else "video",
        timeout_s=timeout,
    )
    start_s = time.monotonic()
    try:
        result = _run(request, url or DEFAULT_URLS[protocol], protocol, quiet)
    except KeyboardInterrupt:
        raise Cancelled(f"{request.model}: cancelled, here and on the server") from None
    write_whole(output, lambda file: _save(result, file))
    if not quiet:
        seconds = time.monotonic() - start_s
        hits = "" if result.cache_hit_rate is None else f", cache hit rate {result.cache_hit_rate:.0%}"
        typer.echo(
            f"{output}: {frames} frames, {width}x{height}, {fps} fps, generated in {seconds:.1f} s{hits}"
        )


def parse_size(text: str) -> tuple[int, int]:
    """Parse "WIDTHxHEIGHT" in pixels.

    Raises:
        InvalidRequest: the text is not of that form.
    """
    if not (found := _SIZE.fullmatch(text.strip())):
        raise InvalidRequest(f"generate: --size must be WIDTHxHEIGHT in pixels, got {text!r}; try 832x480")
    return int(found[1]), int(found[2])


def check_output(path: Path) -> None:
    """Check, before any work, that a result can be written to a path.

    Raises:
        InvalidRequest: another suffix than .mp4 or .npy, or a folder that is missing or read-only.
    """
    problem = ""
    if path.suffix not in (".mp4", ".npy"):
        problem = "must end in .mp4 or .npy"
    elif path.is_dir():
        problem = "must be a file, not a folder"
    elif not path.parent.is_dir():
        problem = "must be in a folder that exists"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        problem = "must be in a folder that can be written"
    if problem:
        raise InvalidRequest(f"generate: --output {problem}, got {path}; try --output out.mp4")


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write a file beside its place and move it there when it is whole.

    Args:
        path: the place.
        write: puts the content into an open file.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            write(file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _run(request: TextToVideoRequest, url: str, protocol: Protocol, quiet: bool) -> Video | Frames:
    from slipway_client import Client, Frames, Progress, Video
    from slipway_client.progress import progress

    with (
        Client(url, protocol) as client,
        progress("step", quiet) as report,
        closing(client.generate(request)) as events,
    ):
        for event in events:
            if isinstance(event, Progress):
                report(event.step, event.steps)
            elif isinstance(event, Video | Frames):
                return event
    raise Unrecoverable(f"{request.model}: generation must end with a result, got none")


def _save(result: Video | Frames, file: BinaryIO) -> None:
    from slipway_client import Video

    if isinstance(result, Video):
        file.write(result.data)
    else:
        import numpy as np

        np.save(file, result.array)
