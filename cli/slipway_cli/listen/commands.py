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
    from slipway_client.listening import WindowResult

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
        typer.Option(
            help="Wake word to detect; may be repeated. By default, every loaded word.", metavar="WORD"
        ),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Send the file as a stream instead of clips.")
    ] = False,
    mono: Annotated[bool, typer.Option("--mono", help="Average the channels of the file.")] = False,
    cooldown_ms: Annotated[
        int,
        typer.Option(
            help="Time after a detection in which its word is not detected again, in milliseconds.",
            min=0,
            max=60_000,
        ),
    ] = 1000,
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot probabilities and thresholds over time: .png, .svg or .pdf.", metavar="FILE"),
    ] = None,
    overwrite: Overwrite = False,
    url: Url = None,
    tls: TlsFolder = None,
    protocol: SpokenProtocol = None,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print detections only.")] = False,
) -> None:
    """Detect wake words in a recording with a running server."""
    from slipway_client import Client
    from slipway_client.listening import StreamDetector, detect_in_clips, read_pieces, split_recording
    from slipway_client.sound import read_recording

    check_plot(plot, overwrite=overwrite)
    if plot is not None:  # imported first, since matplotlib may be missing
        from slipway_cli.listen.plot import draw
    words = list(word or ())
    with Client(*address_of(url, protocol), tls=tls) as client:
        detector = StreamDetector(client, words, cooldown_ms)
        if source == _STDIN:
            results = print_results(detector.detect(read_pieces(sys.stdin.buffer)), "stdin", quiet, json=json)
        else:
            recording = read_recording(Path(source), mono=mono)
            if recording.peak > 1:
                notes(quiet)(f"{source}: divided by its peak, {recording.peak:.3f}, to be within full scale")
            if stream:
                detected = detector.detect(split_recording(recording))
            else:
                detected = detect_in_clips(client, recording, words, cooldown_ms / 1000)
            results = print_results(detected, f"{source} ({recording.seconds:.1f} s)", quiet, json=json)
    if plot is not None:
        draw(results, plot)
        if not quiet:
            typer.echo(str(plot), err=json)
    if json:
        print_json(result_document(results, source, plot))


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


def print_results(
    detected: Iterable[WindowResult], source: str, quiet: bool, *, json: bool = False
) -> list[WindowResult]:
    """Print each detection as it arrives and a summary; return the results of all windows.

    Args:
        detected: Results of the windows, in order of time.
        source: Name of the file or stream, for the summary.
        quiet: True to print detections only.
        json: True to print to stderr, because stdout is reserved for a JSON document.
    """
    results = []
    try:
        for result in detected:
            results.append(result)
            if result.event:
                word = printable(result.word)
                typer.echo(
                    f"{result.time_s:8.2f} s  {word}  {result.probability:.3f}"
                    f" (threshold {result.threshold:.3f})",
                    err=json,
                )
    except KeyboardInterrupt:  # Ctrl-C is the usual way to end a microphone stream
        source += ", interrupted"
    if not quiet:
        words = list(dict.fromkeys(result.word for result in results))
        windows = len({result.time_s for result in results})
        detections = sum(result.event for result in results)
        typer.echo(f"{source}: {windows} windows, {detections} detections", err=json)
        for word in words:
            best = max(
                (result for result in results if result.word == word), key=lambda result: result.probability
            )
            typer.echo(
                f"  {printable(word)}: highest probability {best.probability:.3f} at {best.time_s:.2f} s",
                err=json,
            )
    return results


def result_document(results: Sequence[WindowResult], source: str, plot: Path | None) -> dict[str, Any]:
    """Return the JSON document of a recording: its detections and the best window of each word."""
    best: dict[str, WindowResult] = {}
    for result in results:
        if result.word not in best or result.probability > best[result.word].probability:
            best[result.word] = result
    return {
        "source": source,
        "windows": len({result.time_s for result in results}),
        "detections": [_result_fields(result) for result in results if result.event],
        "highest": [_result_fields(result) for result in best.values()],
        "plot": None if plot is None else str(plot),
    }


def _result_fields(result: WindowResult) -> dict[str, Any]:
    return {
        "word": result.word,
        "time_s": float(result.time_s),
        "probability": float(result.probability),
        "threshold": float(result.threshold),
    }
