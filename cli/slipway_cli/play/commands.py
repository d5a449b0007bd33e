"""The command `slipway play`, which steers a world by script or by hand, on screen and into a video."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway_cli.files import replaced_files, write_whole
from slipway_cli.server_options import Overwrite, Quiet, SpokenProtocol, TlsFolder, Url
from slipway_client.address import address_of
from slipway_client.progress import Say, notes
from slipway_serving.protocol.errors import InvalidRequest, raise_all

if TYPE_CHECKING:
    from slipway_cli.play.terminal import Screen
    from slipway_cli.play.worlds import PlayedBlock
    from slipway_client import Client
    from slipway_client.sessions import ClientSession
    from slipway_serving.video.mp4 import Mp4Encoder

_FAMILY = "matrix_game"


def play(
    family: Annotated[str, typer.Argument(help="Family of worlds: matrix_game.", metavar="FAMILY")],
    image: Annotated[
        Path | None,
        typer.Option(help="Picture that the world begins with.", metavar="FILE"),
    ] = None,
    restore: Annotated[
        Path | None,
        typer.Option(help="Snapshot file from which to resume a world, instead of --image.", metavar="FILE"),
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            help="File for a snapshot of the world at the end, from which --restore resumes it.",
            metavar="FILE",
        ),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="Mode of the world: universal, gta_drive or templerun.")
    ] = "universal",
    actions: Annotated[
        str | None,
        typer.Option(
            help="Keys of each block: wwaaddss; (wl) holds both, w*3 repeats it; @FILE reads a file.",
            metavar="KEYS|@FILE",
        ),
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Steer with the keys of this terminal; Escape ends.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Output file for the video.", metavar="FILE.mp4")
    ] = None,
    fps: Annotated[int, typer.Option(help="Frames per second of the output file.", min=1, max=120)] = 25,
    seed: Annotated[int, typer.Option(help="Seed of the random noise.", min=0)] = 0,
    endless: Annotated[
        bool, typer.Option("--endless", help="Continue from an earlier position where the world would end.")
    ] = False,
    overwrite: Overwrite = False,
    url: Url = None,
    tls: TlsFolder = None,
    protocol: SpokenProtocol = None,
    quiet: Quiet = False,
) -> None:
    """Steer a world on a running server."""
    if output is not None:  # imported before a world begins, since its library may be missing
        from slipway_serving.video.mp4 import Mp4Encoder

        encoder = partial(Mp4Encoder, fps=fps)
    from slipway_cli.play.worlds import play as play_world
    from slipway_client import Client
    from slipway_serving.families.matrix_game.keys import parse_script, vocabulary

    keymap = vocabulary(mode)
    problems = [] if family == _FAMILY else [f"family must be {_FAMILY}, got {family!r}"]
    if (actions is None) != interactive:
        problems.append(
            f"either --actions or --interactive must be given, got {'both' if interactive else 'neither'}"
        )
    if not interactive and output is None and snapshot is None:
        problems.append("--output or --snapshot must be given with --actions, got neither")
    problems += _file_problems(image, restore, snapshot, output)
    problems += replaced_files({"--output": output, "--snapshot": snapshot}, overwrite=overwrite)
    raise_all("play", problems)
    script = None if actions is None else parse_script(_read_script(actions), mode)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(*address_of(url, protocol), tls=tls))
        session = stack.enter_context(_open_session(client, mode, image, seed, restore, notes(quiet)))
        if script is None:
            from slipway_cli.play.terminal import Keys, Screen

            keys = stack.enter_context(Keys(keymap))
            screen = stack.enter_context(Screen(f"{keymap.text}, Escape end"))
            blocks = _on_screen(play_world(session, mode, keys, screen.show, endless=endless), screen)
        else:
            blocks = _with_status_lines(
                play_world(session, mode, script, endless=endless), len(script), quiet
            )
        written_files = [file for file in (output, snapshot) if file is not None]
        if output is None:
            for _ in blocks:
                pass
        else:
            _record(blocks, output, encoder)
        if snapshot is not None:
            write_whole(snapshot, lambda file: file.writelines(session.snapshot()))
    if not quiet:
        for path in written_files:
            typer.echo(str(path))


def _open_session(
    client: Client,
    mode: str,
    image: Path | None,
    seed: int,
    restore: Path | None,
    say: Say,
) -> ClientSession:
    """Return a session of a world that begins with a picture or resumes from a snapshot."""
    from slipway_client.pictures import image_rule, read_picture
    from slipway_serving.families.matrix_game.request import REQUESTS
    from slipway_serving.protocol.snapshots.parts import read_parts

    if image is not None:
        kind = REQUESTS[mode]
        return client.session(kind(image=read_picture(image, image_rule(kind), say), seed=seed))
    assert restore is not None
    with restore.open("rb") as file:
        return client.restore(REQUESTS[mode], read_parts(file, f"play: {restore}"))


def _file_problems(
    image: Path | None, restore: Path | None, snapshot: Path | None, output: Path | None
) -> list[str]:
    """Return a sentence for each file option that is missing, contradictory or unusable."""
    problems = []
    if (image is None) == (restore is None):
        problems.append(
            f"either --image or --restore must be given, got {'neither' if image is None else 'both'}"
        )
    for name, file in (("image", image), ("restore", restore)):
        if file is not None and not file.is_file():
            problems.append(f"--{name} must be a file that exists, got {file}")
    if snapshot is not None and not snapshot.parent.is_dir():
        problems.append(f"--snapshot must be in a folder that exists, got {snapshot}")
    if output is not None and (output.suffix != ".mp4" or not output.parent.is_dir()):
        problems.append(f"--output must end in .mp4 and be in a folder that exists, got {output}")
    return problems


def _read_script(actions: str) -> str:
    """Return the script itself, or the content of the file that it names after @."""
    if not actions.startswith("@"):
        return actions
    try:
        return Path(actions[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"play: --actions must name a text file after @, got {actions}: {error}"
        ) from None


def _with_status_lines(blocks: Iterator[PlayedBlock], count: int, quiet: bool) -> Iterator[PlayedBlock]:
    """Yield the blocks and print a status line for each."""
    for index, block in enumerate(blocks, 1):
        if not quiet:
            print(f"{index} of {count}: {block.status}", file=sys.stderr, flush=True)
        yield block


def _on_screen(blocks: Iterator[PlayedBlock], screen: Screen) -> Iterator[PlayedBlock]:
    """Yield the blocks and show a status line for each on the screen; Ctrl-C ends them."""
    with contextlib.suppress(KeyboardInterrupt):
        for block in blocks:
            screen.show_status(block.status)
            yield block


def _record(blocks: Iterator[PlayedBlock], output: Path, video: Callable[[int, int], Mp4Encoder]) -> None:
    """Encode the frames of blocks as they arrive; the file appears complete or not at all."""
    first = next(blocks, None)
    if first is None:
        raise InvalidRequest(
            "play: no block was generated, so there is no video to write; try at least one key"
        )
    _, height, width, _ = first.frames.shape
    with video(width, height) as encoder:
        encoder.add(first.frames)
        for block in blocks:
            encoder.add(block.frames)
        write_whole(output, lambda file: file.write(encoder.finish()))
