"""The command `slipway play`: a world steered by a script or by hand, on screen and into a video."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway_client.files import write_whole
from slipway_client.options import DEFAULT_URLS, Quiet, SpokenProtocol, Url
from slipway_serving.errors import InvalidRequest, raise_all

if TYPE_CHECKING:
    from slipway_client.play.terminal import Screen
    from slipway_client.play.worlds import Block
    from slipway_serving.video.mp4 import Mp4Encoder

_FAMILY = "matrix_game"


def play(
    family: Annotated[str, typer.Argument(help="A family of worlds: matrix_game.", metavar="FAMILY")],
    image: Annotated[
        Path, typer.Option(help="The picture that the world begins with: PNG, JPEG or WebP.", metavar="FILE")
    ],
    mode: Annotated[str, typer.Option(help="Which world: universal, gta_drive or templerun.")] = "universal",
    actions: Annotated[
        str | None,
        typer.Option(
            help="Keys, one for each block: wwaaddss; (wl) together, w*3 three times; or @FILE with such.",
            metavar="KEYS|@FILE",
        ),
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Steer by the keys of this terminal; Escape ends.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Write what was seen.", metavar="FILE.mp4")] = None,
    fps: Annotated[int, typer.Option(help="Frames a second of the file.", min=1, max=120)] = 25,
    seed: Annotated[int, typer.Option(help="Of the noise.", min=0)] = 0,
    url: Url = None,
    protocol: SpokenProtocol = "grpc",
    quiet: Quiet = False,
) -> None:
    """Play a world on a running server."""
    if output is not None:  # before a world begins: it may lack its library
        from slipway_serving.video.mp4 import Mp4Encoder

        encoder = partial(Mp4Encoder, fps=fps)
    from slipway_client import Client
    from slipway_client.play.worlds import opening
    from slipway_client.play.worlds import play as played
    from slipway_serving.matrix_game.keys import parse_script, vocabulary

    known = vocabulary(mode)
    problems = [] if family == _FAMILY else [f"family must be {_FAMILY}, got {family!r}"]
    if (actions is None) != interactive:
        problems.append(f"actions must be given, or --interactive, got {actions!r} and {interactive}")
    if not interactive and output is None:
        problems.append("output must be given with --actions, got none")
    if output is not None and (output.suffix != ".mp4" or not output.parent.is_dir()):
        problems.append(f"output must end in .mp4 and be in a folder that exists, got {output}")
    if not image.is_file():
        problems.append(f"image must be a file, got {image}")
    raise_all("play", problems)
    script = None if actions is None else parse_script(_text(actions), mode)
    request = opening(mode, image.read_bytes(), seed)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(url or DEFAULT_URLS[protocol], protocol))
        if script is None:
            from slipway_client.play.terminal import Keys, Screen

            keys = stack.enter_context(Keys(known))
            screen = stack.enter_context(Screen(f"{known.text}, Escape end"))
            shown = _on_screen(played(client, request, mode, keys, screen.show), screen)
        else:
            shown = _told(played(client, request, mode, script), len(script), quiet)
        if output is None:
            for _ in shown:
                pass
        else:
            _record(shown, output, encoder)
            if not quiet:
                typer.echo(str(output))


def _text(actions: str) -> str:
    """Return a script: what was given, or what the file that it names holds."""
    if not actions.startswith("@"):
        return actions
    try:
        return Path(actions[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"play: actions must name a text file after @, got {actions}: {error}") from None


def _told(blocks: Iterator[Block], count: int, quiet: bool) -> Iterator[Block]:
    """Hand on blocks and say a line of each."""
    for block in blocks:
        if not quiet:
            print(f"{block.made.block + 1} of {count}: {block.status}", file=sys.stderr, flush=True)
        yield block


def _on_screen(blocks: Iterator[Block], screen: Screen) -> Iterator[Block]:
    """Hand on blocks and say a line of each on the screen; Ctrl-C ends them."""
    with contextlib.suppress(KeyboardInterrupt):
        for block in blocks:
            screen.say(block.status)
            yield block


def _record(blocks: Iterator[Block], output: Path, video: Callable[[int, int], Mp4Encoder]) -> None:
    """Write the frames of blocks as they come; the file appears whole, or not at all."""
    first = next(blocks, None)
    if first is None:
        raise InvalidRequest("play: at least one block must be made for a video, got none")
    _, height, width, _ = first.frames.shape
    with video(width, height) as encoder:
        encoder.add(first.frames)
        for block in blocks:
            encoder.add(block.frames)
        write_whole(output, lambda file: file.write(encoder.finish()))
