"""Benchmark of the two backends of ONNX graphs: Triton's own, in C++, beside ours, in Python.

Two servers of the same repository run the whole time. Each round puts both under the same load, one after the
other, so that a slow moment of the machine affects both. Clips, streams, inertial batches and a denoising
step are sent over HTTP by a closed loop of clients; worlds are played by our client over gRPC, a block per
call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from slipway_benchmarks.report import spread
from slipway_benchmarks.servers.closed_loop import Target, closed_loop
from slipway_benchmarks.servers.wakeword import AUDIO, STREAM, clip, export_tiny, infer_target, triton_target
from slipway_benchmarks.stats import Summary, ratios, summarize
from slipway_client import Client
from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.graph.onnx import example_inputs
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.families.airimu.request import CorrectionRequest
from slipway_serving.families.matrix_game.request import UniversalActions, UniversalRequest
from slipway_serving.protocol.requests import encode
from slipway_serving.system.server_processes import process_ids
from slipway_serving.system.temporary_folders import TemporaryFolder
from slipway_serving.triton.install.locate import find_triton
from slipway_serving.triton.install.setup import OnnxRuntimeBackend, TritonSetup
from slipway_serving.triton.server import Server, ServerConfig

NATIVE: OnnxRuntimeBackend = "native"
PYTHON: OnnxRuntimeBackend = "python"
_WORLD_PARTS = ("universal", "image_encoder", "vae_encoder", "vae_decoder")
Report = Callable[[str], None]
LoadServer = Callable[[Server, int, float], float]
"""Function that loads a server by some clients for some seconds and returns the answers per second."""


@dataclass(frozen=True)
class BackendsOptions:
    """Options of the benchmark.

    Attributes:
        clients: Numbers of simultaneous clients of short requests.
        rounds: Number of rounds, each of which loads both servers once per case.
        seconds: Length of each load, in seconds.
        triton_dir: Folder of an installed Triton with a C++ backend; None finds one.
    """

    clients: tuple[int, ...] = (1, 8, 16)
    rounds: int = 4
    seconds: float = 4.0
    triton_dir: Path | None = None


@dataclass(frozen=True)
class Compared:
    """Figures of one case.

    Attributes:
        native: Answers per second with Triton's C++ backend, by round.
        python: Answers per second with our backend, by round.
        ratio: Native ÷ python, by round.
    """

    native: Summary
    python: Summary
    ratio: Summary


@dataclass(frozen=True)
class Held:
    """Processes of a server and their memory.

    Attributes:
        processes: Number of processes.
        pss_bytes: Proportional set size of all of them, in bytes.
    """

    processes: int
    pss_bytes: int


@dataclass(frozen=True)
class BackendsResult:
    """Result of the benchmark, by case and by backend."""

    options: BackendsOptions
    triton: str
    cases: Mapping[str, Compared]
    held: Mapping[str, Held]


def run(options: BackendsOptions, report: Report) -> BackendsResult:
    """Run the benchmark.

    Args:
        options: Options of the benchmark.
        report: Callback that receives a line before each long step.

    Raises:
        NotReady: The Triton has no C++ backend for ONNX graphs.
    """
    setup = TritonSetup.choose(find_triton(options.triton_dir), NATIVE)
    with TemporaryFolder("slipway-measurement-") as folder:
        report("exporting the tiny presets")
        repository = export_tiny(folder)
        for family, more in (("airimu", {}), ("wan_t2v", {}), ("matrix_game", {"components": _WORLD_PARTS})):
            run_export(family_named(family), ExportOptions("tiny", repository, **more))  # type: ignore[arg-type]
        report("starting the servers")
        with _server(repository, NATIVE, options) as native, _server(repository, PYTHON, options) as python:
            servers: dict[str, Server] = {NATIVE: native, PYTHON: python}
            cases = _measure(servers, options, report)
            held = {name: _held(server) for name, server in servers.items()}
    return BackendsResult(options, setup.install.version, cases, held)


def _server(repository: Path, backend: OnnxRuntimeBackend, options: BackendsOptions) -> Server:
    return Server(
        ServerConfig(
            repository,
            http_port=0,
            grpc_port=0,
            metrics_port=0,
            triton_dir=options.triton_dir,
            onnxruntime_backend=backend,
        )
    )


def _held(server: Server) -> Held:
    processes = [psutil.Process(pid) for pid in process_ids(server.server_id)]
    return Held(len(processes), sum(process.memory_full_info().pss for process in processes))


def _measure(servers: Mapping[str, Server], options: BackendsOptions, report: Report) -> dict[str, Compared]:
    found: dict[str, Compared] = {}
    for case, (load, counts) in _cases(options).items():
        for clients in counts:
            name = f"{case}, {clients} client{'s' if clients > 1 else ''}"
            report(f"{name}: {options.rounds} rounds")
            rates: dict[str, list[float]] = {backend: [] for backend in servers}
            for number in range(options.rounds + 1):  # the first round warms up
                for backend, server in servers.items():
                    rate = load(server, clients, options.seconds if number else 1.0)
                    if number:
                        rates[backend].append(rate)
            found[name] = Compared(
                summarize(rates[NATIVE]),
                summarize(rates[PYTHON]),
                summarize(ratios(rates[NATIVE], rates[PYTHON])),
            )
    return found


def _cases(options: BackendsOptions) -> dict[str, tuple[LoadServer, tuple[int, ...]]]:
    """Return the load of each case, and the numbers of clients that it is measured with."""
    sound = clip()
    random = np.random.default_rng(0)
    batch = CorrectionRequest(
        acc=random.normal(size=(1, 1000, 3)).astype(np.float32),
        gyro=random.normal(size=(1, 1000, 3)).astype(np.float32),
    )
    step = _denoiser_inputs()
    targets: dict[str, tuple[Callable[[int], Target], tuple[int, ...]]] = {
        "wake words, clips": (lambda port: triton_target(port, AUDIO, sound), options.clients),
        "wake words, streams": (lambda port: triton_target(port, STREAM, sound), options.clients),
        "IMU, 1,000 samples": (lambda port: infer_target(port, batch.model, encode(batch)), options.clients),
        "Wan, a denoiser's call": (lambda port: infer_target(port, "wan_t2v_denoiser_high", step), (1,)),
    }

    def over_http(target: Callable[[int], Target]) -> LoadServer:
        return lambda server, clients, seconds: (
            closed_loop(target(server.config.http_port), clients, seconds).per_s
        )

    found = {name: (over_http(target), counts) for name, (target, counts) in targets.items()}
    return {**found, "worlds, a block": (_play, (1, 2))}


def _denoiser_inputs() -> dict[str, Any]:
    """Return inputs of the tiny denoiser at the sizes that its graph is tuned for."""
    family = family_named("wan_t2v")
    with open_checkpoint(family, "tiny") as checkpoint:
        plan = family.plan(checkpoint, axes_of(family, checkpoint, {}))
    denoiser = next(each for each in plan.components if each.name == "denoiser_high")
    inputs = example_inputs(denoiser, denoiser.points()["opt"])
    # Triton takes a number for each row of a batch as [rows, 1].
    return {name: array if array.ndim > 1 else array[:, None] for name, array in inputs.items()}


def _play(server: Server, players: int, seconds: float) -> float:
    """Play worlds at the same time, each block as soon as the last is there; return the blocks per second."""
    picture = np.random.default_rng(1).integers(0, 256, (48, 80, 3), np.uint8)
    blocks: list[int] = []

    def actions(frames: int) -> UniversalActions:
        return UniversalActions(
            mouse_cond=np.zeros((frames, 2), np.float32), keyboard_cond=np.zeros((frames, 4), np.float32)
        )

    def play() -> None:
        with Client(server.grpc_url) as client, client.session(UniversalRequest(picture)) as world:
            list(world.step(actions(9)))
            made, until = 0, time.monotonic() + seconds
            while time.monotonic() < until:
                list(world.step(actions(12)))
                made += 1
            blocks.append(made)

    threads = [threading.Thread(target=play) for _ in range(players)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(blocks) / seconds


def backends_json(result: BackendsResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the benchmark as JSON."""
    facts = {**asdict(result), "options": {**asdict(result.options), "triton_dir": None}}
    return {"benchmark": "backends", "machine": dict(machine), **facts}


def print_backends(console: Console, result: BackendsResult) -> None:
    """Print the cases and the memory as tables."""
    rounds, seconds = result.options.rounds, result.options.seconds
    table = Table(
        f"Triton {result.triton}, {rounds} rounds of {seconds:g} s",
        "native/s",
        "python/s",
        "native ÷ python",
        box=box.SIMPLE,
    )
    for name, case in result.cases.items():
        table.add_row(name, f"{case.native.median:.1f}", f"{case.python.median:.1f}", spread(case.ratio))
    console.print(table)
    memory = Table("backend", "processes", "memory (PSS), MiB", box=box.SIMPLE)
    for name, held in result.held.items():
        memory.add_row(name, str(held.processes), f"{held.pss_bytes / 2**20:.0f}")
    console.print(memory)
