"""The commands `slipway imu`, which corrects and evaluates a recording, and `slipway imu-recording`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway_cli.files import replaced_files, write_whole
from slipway_cli.server_options import Overwrite, SpokenProtocol, TlsFolder, Url
from slipway_client.address import address_of
from slipway_client.generation import Protocol
from slipway_client.imu.units import AccelerationUnit, RateUnit, TimeUnit, Units
from slipway_serving.protocol.distribution import install_hint
from slipway_serving.protocol.durations import checked_option
from slipway_serving.protocol.errors import InvalidRequest, raise_all

if TYPE_CHECKING:
    from slipway_client.imu.recording import Recording
    from slipway_client.imu.trajectory import Errors
    from slipway_client.imu.windows import CorrectedRecording, CorrectWindow, Signal

_PLOTS = (".png", ".svg", ".pdf")


def imu(
    context: typer.Context,
    data: Annotated[
        Path,
        typer.Argument(
            help="Recording: a CSV file of signals, a folder that contains EuRoC's or TUM-VI's imu0, or a"
            " drive of KITTI's raw data.",
            metavar="FILE.csv|DIR",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Output file for the corrected signals, in EuRoC's columns."),
    ] = Path("corrected.csv"),
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot the trajectories: .png, .svg or .pdf.", metavar="FILE"),
    ] = None,
    ground_truth: Annotated[
        Path | None,
        typer.Option(
            help="Ground truth: EuRoC's state_groundtruth_estimate0/data.csv or TUM-VI's mocap0/data.csv; by"
            " default, the file beside the folder's imu0.",
            metavar="FILE.csv",
        ),
    ] = None,
    time_unit: Annotated[
        TimeUnit | None, typer.Option(help="Unit of the times; by default, the header's, or ns.")
    ] = None,
    rate_unit: Annotated[
        RateUnit | None,
        typer.Option(help="Unit of the rates of rotation; by default, the header's, or rad/s."),
    ] = None,
    acceleration_unit: Annotated[
        AccelerationUnit | None,
        typer.Option(help="Unit of the accelerations; by default, the header's, or m/s^2."),
    ] = None,
    window_size: Annotated[int, typer.Option(help="Number of frames corrected at once, 1 or more.")] = 1000,
    step_size: Annotated[
        int | None,
        typer.Option(
            help="Frames from one window to the next, 1 to the window size; by default, the window size."
        ),
    ] = None,
    segment_frames: Annotated[
        int, typer.Option(help="Length of the segments of the relative errors, in frames.", min=1)
    ] = 200,
    onnx: Annotated[
        Path | None,
        typer.Option(
            help="Correct without a server, with a repository's airimu_codenet/1/model.onnx.",
            metavar="FILE.onnx",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Checkpoint to compare with in PyTorch; requires --verbose.", metavar="PRESET|DIR"),
    ] = None,
    conf: Annotated[
        Path | None,
        typer.Option(
            help="Configuration file of a checkpoint, with --ckpt instead of --checkpoint.", metavar="FILE"
        ),
    ] = None,
    ckpt: Annotated[
        Path | None,
        typer.Option(
            help="Weights file of a checkpoint, with --conf instead of --checkpoint.", metavar="FILE"
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Print the first window's largest differences from the checkpoint."),
    ] = False,
    overwrite: Overwrite = False,
    url: Url = None,
    tls: TlsFolder = None,
    protocol: SpokenProtocol = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Correct a recording of an inertial sensor with AirIMU, and evaluate the corrected trajectory."""
    from slipway_client.imu.read import read_recording, write_signals
    from slipway_client.imu.windows import correct, split_windows, window_inputs
    from slipway_client.progress import notes, progress

    files = {role: path for role, path in (("conf", conf), ("ckpt", ckpt)) if path is not None}
    # A URL from the environment is a default and does not contradict --onnx.
    source = context.get_parameter_source("url")
    is_typed = source is not None and source.name == "COMMANDLINE"
    _check(output, plot, onnx, url if is_typed else None, overwrite=overwrite)
    _check_comparison(checkpoint, files, verbose)
    step = window_size if step_size is None else step_size
    recording = read_recording(
        data, ground_truth, Units(time_unit, rate_unit, acceleration_unit), notes(quiet)
    )
    start_s = time.monotonic()
    with _corrector(onnx, url, protocol, tls) as correct_window:
        if verbose:
            inputs = window_inputs(recording, next(split_windows(len(recording), window_size, step)))
            outputs = correct_window(*inputs), _by_checkpoint(checkpoint, files)(*inputs)
            _print_difference("ONNX" if onnx else "served", *outputs)
        with progress("frame", quiet) as report:
            corrected = correct(
                recording, correct_window, window_size, step, lambda frames: report(frames, len(recording))
            )
    elapsed_s = time.monotonic() - start_s
    write_whole(output, lambda file: write_signals(file, corrected.recording, corrected.variances))
    if not quiet:
        typer.echo(
            f"{output}: {len(recording)} frames of {recording.name} in {corrected.windows} windows,"
            f" corrected in {elapsed_s:.1f} s"
        )
    _measure(recording, corrected, segment_frames, plot, quiet)


def imu_recording(
    output: Annotated[Path, typer.Argument(help="Output folder; must be empty or new.", metavar="DIR")],
    seconds: Annotated[
        float, typer.Option(help="Duration, in seconds.", min=0.01, max=3600, callback=checked_option)
    ] = 60.0,
    rate: Annotated[
        float, typer.Option(help="Sampling rate, in Hz.", min=10, max=10_000, callback=checked_option)
    ] = 200.0,
    rest_s: Annotated[
        float,
        typer.Option(
            help="Time before the sensor first moves, in seconds.",
            min=0,
            max=3600,
            callback=checked_option,
        ),
    ] = 2.0,
    seed: Annotated[
        int, typer.Option(help="Seed of motion and noise; the sensor's bias does not depend on it.", min=0)
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Generate a recording of a sensor with bias and noise, with ground truth, in EuRoC's layout."""
    from slipway_client.imu.read import write_euroc
    from slipway_client.imu.synthetic import Style, make_recording

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InvalidRequest(f"imu-recording: output must be an empty or new folder, got {output}")
    recording = make_recording(seconds, rate, seed, style=Style(rest_s=rest_s))
    write_euroc(output, recording)
    if not quiet:
        typer.echo(f"{output}: {len(recording)} frames at {rate:g} Hz, with ground truth")


def _check(output: Path, plot: Path | None, onnx: Path | None, url: str | None, *, overwrite: bool) -> None:
    """Check the options before any work.

    Raises:
        InvalidRequest: An option is wrong; all wrong ones are named.
    """
    problems = []
    if output.suffix != ".csv" or not output.parent.is_dir() or output.is_dir():
        problems.append(f"--output must end in .csv and be in a folder that exists, got {output}")
    if plot is not None and (plot.suffix not in _PLOTS or not plot.parent.is_dir()):
        problems.append(f"--plot must end in {', '.join(_PLOTS)} and be in a folder that exists, got {plot}")
    if onnx is not None and url is not None:
        problems.append("--onnx and --url must not be given together, got both; try one of them")
    problems += replaced_files({"--output": output, "--plot": plot}, overwrite=overwrite)
    raise_all("imu", problems)


def _check_comparison(checkpoint: str | None, files: Mapping[str, Path], verbose: bool) -> None:
    """Check that --verbose comes with a checkpoint, and a checkpoint with --verbose.

    Raises:
        InvalidRequest: An option is wrong; all wrong ones are named.
    """
    problems = []
    if checkpoint is not None and files:
        problems.append(
            f"--checkpoint must be left out with {', '.join(f'--{role}' for role in files)}, got both"
        )
    if verbose != (checkpoint is not None or bool(files)):
        problems.append(
            "--verbose and --checkpoint must be given together, got one of them; --conf with --ckpt is a"
            " checkpoint too"
        )
    raise_all("imu", problems)


@contextmanager
def _corrector(
    onnx: Path | None, url: str | None, protocol: Protocol | None, tls: Path | None
) -> Iterator[CorrectWindow]:
    """Provide the callback that corrects a window, by a graph on this machine or by a server."""
    if onnx is not None:
        from slipway_export.families.airimu.local import by_onnx

        yield by_onnx(onnx)
        return
    from slipway_client.client import Client
    from slipway_client.imu.windows import server_corrector

    with Client(*address_of(url, protocol), tls=tls) as client:
        yield server_corrector(client)


def _by_checkpoint(checkpoint: str | None, files: Mapping[str, Path]) -> CorrectWindow:
    """Return a callback that corrects a window with a checkpoint's network in PyTorch."""
    from slipway_export.families.airimu.local import by_torch

    try:
        return by_torch(checkpoint or "", files)
    except ModuleNotFoundError as error:
        # Only a checkpoint needs packages beyond the command's own extra.
        raise InvalidRequest(
            f"imu: a checkpoint needs {error.name}, which is not installed;"
            f" try {install_hint('export', 'signals')}"
        ) from None


def _print_difference(name: str, ours: Mapping[str, Signal], theirs: Mapping[str, Signal]) -> None:
    """Print the largest difference between the first window's corrections and PyTorch's."""
    off = {
        sensor: abs(ours[f"correction_{sensor}"] - theirs[f"correction_{sensor}"]).max()
        for sensor in ("acc", "gyro")
    }
    typer.echo(
        f"first window, {name} against PyTorch, max abs difference:"
        f" acc {off['acc']:.3e} m/s², gyro {off['gyro']:.3e} rad/s"
    )


def _measure(
    recording: Recording, corrected: CorrectedRecording, segment_frames: int, plot: Path | None, quiet: bool
) -> None:
    """Print the errors of the raw and the corrected trajectory, and draw them."""
    if plot is None and (quiet or recording.truth is None):
        return
    from slipway_client.imu.trajectory import errors, integrate

    motions = {"raw": integrate(recording), "corrected": integrate(corrected.recording)}
    if recording.truth is not None and not quiet:
        signals = {"raw": recording, "corrected": corrected.recording}
        found = {name: errors(signals[name], motions[name], segment_frames) for name in motions}
        _print_errors(found, segment_frames)
    if plot is not None:
        from slipway_cli.imu.plot import draw

        draw(recording, motions, plot)
        if not quiet:
            typer.echo(str(plot))


def _print_errors(found: dict[str, Errors], segment_frames: int) -> None:
    """Print the trajectory errors of the raw and the corrected signals as a table."""
    labels = {
        "ate_m": "ATE, m",
        "aoe_deg": "AOE, degrees",
        "rte_m": f"RTE over {segment_frames} frames, m",
        "roe_deg": f"ROE over {segment_frames} frames, degrees",
    }
    typer.echo(f"{'':32}" + "".join(f"{name:>14}" for name in found))
    for field, label in labels.items():
        values = [getattr(each, field) for each in found.values()]
        cells = (f"{'too short':>14}" if value is None else f"{value:14.4f}" for value in values)
        typer.echo(f"{label:32}" + "".join(cells))
