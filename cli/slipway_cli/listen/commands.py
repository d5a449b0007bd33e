"""The command `slipway listen`, which detects wake words in a recording or in stdin and plots them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipway_cli.files import replaced_files
from slipway_cli.server_options import Overwrite, SpokenProtocol, TlsFolder, Url
from slipway_client.address import address_of
from slipway_client.progress import notes
from slipway_serving.protocol.command_output import Json, print_json
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.protocol.texts import printable

if TYPE_CHECKING:
    from slipway_client.listening import Heard

_STDIN = "-"
_PLOTS = (".png", ".svg", ".pdf")


def listen(
    source: Annotated[
        str,
        typer.Argument(
            help="An audio file (WAV, FLAC, Ogg, MP3, ...), resampled to 16 kHz; or - for raw 16-bit "
            "little-endian mono samples at 16 kHz from stdin, which are always streamed.",
            metavar="FILE|-",
        ),
    ],
    word: Annotated[
        list[str] | None,
        typer.Option(help="A wake word; may be repeated. By default every loaded one.", metavar="WORD"),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Send the file as a stream of PCM pieces.")
    ] = False,
    mono: Annotated[bool, typer.Option("--mono", help="Take the mean of a file's channels.")] = False,
    cooldown_ms: Annotated[
        int,
        typer.Option(help="After a detection, milliseconds without another of its word.", min=0, max=60_000),
    ] = 1000,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw probability over time with thresholds: .png, .svg or .pdf.", metavar="FILE"),
    ] = None,
    overwrite: Overwrite = False,
    url: Url = None,
    tls: TlsFolder = None,
    protocol: SpokenProtocol = None,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print detections only.")] = False,
) -> None:
    """Listen for wake words in a recording with a running server."""
    from slipway_client import Client
    from slipway_client.listening import Stream, in_clips, pieces_from, pieces_of
    from slipway_client.sound import read_recording

    check_plot(plot, overwrite=overwrite)
    if plot is not None:  # imported first, since matplotlib may be missing
        from slipway_cli.listen.plot import draw
    words = list(word or ())
    with Client(*address_of(url, protocol), tls=tls) as client:
        streamed = Stream(client, words, cooldown_ms)
        if source == _STDIN:
            heard = report(streamed.listen(pieces_from(sys.stdin.buffer)), "stdin", quiet, json=json)
        else:
            recording = read_recording(Path(source), mono=mono)
            if recording.peak > 1:
                notes(quiet)(f"{source}: divided by its peak, {recording.peak:.3f}, to be within full scale")
            if stream:
                found = streamed.listen(pieces_of(recording))
            else:
                found = in_clips(client, recording, words, cooldown_ms / 1000)
            heard = report(found, f"{source} ({recording.seconds:.1f} s)", quiet, json=json)
    if plot is not None:
        draw(heard, plot)
        if not quiet:
            typer.echo(str(plot), err=json)
    if json:
        print_json(document(heard, source, plot))


def check_plot(path: Path | None, *, overwrite: bool = False) -> None:
    """Check, before any work, that a plot can be written to a path.

    Raises:
        InvalidRequest: The suffix is unknown, the folder is missing, or the file exists and `overwrite` is
            not set.
    """
    raise_all("listen", replaced_files({"--plot": path}, overwrite=overwrite))
    if path is not None and (path.suffix not in _PLOTS or not path.parent.is_dir()):
        raise InvalidRequest(
            f"listen: --plot must end in {', '.join(_PLOTS)} and be in a folder that exists, got {path}"
        )


def report(found: Iterable[Heard], source: str, quiet: bool, *, json: bool = False) -> list[Heard]:
    """Print each detection as it arrives and a summary; return the results of all windows.

    Args:
        found: Results of the windows, in order of time.
        source: Name of the file or stream, for the summary.
        quiet: True to print detections only.
        json: True to print to stderr, because stdout is reserved for a JSON document.
    """
    heard = []
    try:
        for one in found:
            heard.append(one)
            if one.event:
                word = printable(one.word)
                typer.echo(
                    f"{one.time_s:8.2f} s  {word}  {one.probability:.3f} (threshold {one.threshold:.3f})",
                    err=json,
                )
    except KeyboardInterrupt:  # Ctrl-C is the usual way to end a microphone stream
        source += ", interrupted"
    if not quiet:
        words = list(dict.fromkeys(one.word for one in heard))
        windows = len({one.time_s for one in heard})
        typer.echo(f"{source}: {windows} windows, {sum(one.event for one in heard)} detections", err=json)
        for word in words:
            best = max((one for one in heard if one.word == word), key=lambda one: one.probability)
            typer.echo(
                f"  {printable(word)}: highest probability {best.probability:.3f} at {best.time_s:.2f} s",
                err=json,
            )
    return heard


def document(heard: Sequence[Heard], source: str, plot: Path | None) -> dict[str, Any]:
    """Return the JSON document of a recording: its detections and the best window of each word."""
    best: dict[str, Heard] = {}
    for one in heard:
        if one.word not in best or one.probability > best[one.word].probability:
            best[one.word] = one
    return {
        "source": source,
        "windows": len({one.time_s for one in heard}),
        "detections": [_facts(one) for one in heard if one.event],
        "highest": [_facts(one) for one in best.values()],
        "plot": None if plot is None else str(plot),
    }


def _facts(one: Heard) -> dict[str, Any]:
    return {
        "word": one.word,
        "time_s": float(one.time_s),
        "probability": float(one.probability),
        "threshold": float(one.threshold),
    }
