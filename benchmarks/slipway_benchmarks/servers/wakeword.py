"""Wake-word benchmark: the gain from batching under load, and the gain from int8.

Triton with dynamic batching, the same repository without it, and LitServe servers of the same graphs with
their own batching serve the same closed loop of clients in turn; all of them run the whole time. There are
three kinds of requests: audio (features, backbone, head), a stream's next half second, which fills a window,
and the features alone (one fused graph). LitServe extracts features with transformers' extractor, as its
users would, or with our graph. It supports no streams, so it gets the stream's windows as one clip each. Then
the graphs of the public sizes are timed in float32 and int8, in turn.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from google.protobuf import text_format
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from tritonclient.grpc import model_config_pb2

from slipway_benchmarks.report import spread
from slipway_benchmarks.servers.closed_loop import Load, Post, Target, closed_loop
from slipway_benchmarks.servers.litserve import LitServe, litserve, litserve_target
from slipway_benchmarks.servers.litserve_wakeword import Kind
from slipway_benchmarks.similarity import relative_l2
from slipway_benchmarks.stats import Summary, ratios, summarize
from slipway_client.http.messages import infer_body
from slipway_export.families import family_named
from slipway_export.families.wakeword.family import TINY_CONFIG, TINY_PREPROCESSOR
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Precision
from slipway_serving.families.wakeword.audio import Extractor
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ, ClipsRequest, ListenRequest, ListenTurn
from slipway_serving.families.wakeword.words import FUSED_SUFFIX, head_model
from slipway_serving.protocol.requests import encode
from slipway_serving.protocol.turns import NO_SESSION, Turn, Turns
from slipway_serving.system.temporary_folders import TemporaryFolder
from slipway_serving.triton.server import Server, ServerConfig

BATCHED, PLAIN, LITSERVE = "Triton, dynamic batching", "Triton without it", "LitServe, its batching"
LITSERVE_GRAPH = "LitServe, our graph of features"
AUDIO, STREAM, FEATURES = "audio", "stream", "features"
# For each kind of request, the LitServe servers that are measured and the kind of request that each one gets.
LITSERVE_KINDS = {
    AUDIO: {LITSERVE: Kind.AUDIO, LITSERVE_GRAPH: Kind.AUDIO_GRAPH},
    STREAM: {LITSERVE: Kind.AUDIO, LITSERVE_GRAPH: Kind.AUDIO_GRAPH},
    FEATURES: {LITSERVE: Kind.FEATURES},
}
WORD = "jarvis"
MOST_BATCHED = 16
PUBLIC_CONFIG = TINY_CONFIG | {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
Report = Callable[[str], None]
Array = NDArray[Any]


@dataclass(frozen=True)
class WakewordOptions:
    """Options of the wake-word benchmark.

    Attributes:
        clients: Number of concurrent clients.
        rounds: Number of rounds, each of which puts every server under load once.
        seconds: Length of each load, in seconds.
        threads: Number of threads of ONNX Runtime in each server.
        calls: Number of timed calls of each graph in the int8 part; 0 skips that part.
    """

    clients: int = 16
    rounds: int = 5
    seconds: float = 4.0
    threads: int = 1
    calls: int = 15


@dataclass(frozen=True)
class Served:
    """Figures of one server.

    Attributes:
        per_s: Answered requests per second, by round.
        ratio: Requests per second of Triton with dynamic batching ÷ its own, by round.
        p50_ms: Median latency of all its requests, in milliseconds.
        p99_ms: Latency's 99th percentile, in milliseconds.
    """

    per_s: Summary
    ratio: Summary
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Quantized:
    """Effect of int8 on one graph.

    Attributes:
        fp32_bytes: Size of the float32 file, in bytes.
        int8_bytes: Size of the int8 file, in bytes.
        ratio: Time of a call in float32 ÷ in int8, by call.
        relative_l2: Relative L2 of the first output, int8 against float32.
    """

    fp32_bytes: int
    int8_bytes: int
    ratio: Summary
    relative_l2: float


@dataclass(frozen=True)
class WakewordResult:
    """Result of the wake-word benchmark, by request and server, and by graph."""

    options: WakewordOptions
    served: Mapping[str, Mapping[str, Served]]
    quantized: Mapping[str, Quantized]


def run(options: WakewordOptions, report: Report) -> WakewordResult:
    """Run both parts.

    Args:
        options: Options of the benchmark.
        report: Callback that receives a line before each long step.
    """
    with TemporaryFolder("slipway-measurement-") as folder:
        report("exporting the tiny presets")
        repository = export_tiny(folder)
        served = measure_servers(repository, folder, options, report)
        quantized = measure_int8(folder, options, report) if options.calls else {}
    return WakewordResult(options, served, quantized)


def export_tiny(folder: Path) -> Path:
    """Export a tiny backbone, one word and its fused graph; return the repository."""
    backbone, word = write_checkpoints(folder / "tiny", TINY_CONFIG)
    repository = folder / "repository"
    export("wakeword", backbone, repository)
    export("wakeword_head", word, repository)
    export("wakeword_head", word, repository, variant="fused")
    return repository


def write_checkpoints(folder: Path, config: Mapping[str, Any], **options: float) -> tuple[Path, Path]:
    """Write a random backbone and a random head with all of its blocks; return their folders."""
    from slipway_export.families.wakeword.network import HeadConfig
    from slipway_export.families.wakeword.presets import all_flags, write_backbone, write_word

    backbone, word = folder / "backbone", folder / WORD
    for made in (backbone, word):
        made.mkdir(parents=True)
    write_backbone(backbone, config, TINY_PREPROCESSOR, 0, **options)
    head = all_flags(HeadConfig(embedding_dim=config["hidden_size"]))
    write_word(word, head, 0, base_model=str(backbone))
    return backbone, word


def export(
    family: str,
    checkpoint: Path,
    repository: Path,
    precision: Precision = Precision.FP32,
    variant: str | None = None,
) -> None:
    """Export a checkpoint as `slipway export` does."""
    options = ExportOptions(
        checkpoint=str(checkpoint), repository=repository, precision=precision, variant=variant
    )
    run_export(family_named(family), options)


def measure_servers(
    repository: Path, folder: Path, options: WakewordOptions, report: Report
) -> dict[str, dict[str, Served]]:
    """Put the servers under load in turn; return the figures of each, by request."""
    with_threads(repository, options.threads)
    plain = folder / "plain"
    shutil.copytree(repository, plain)
    change_configs(plain, lambda config: config.ClearField("dynamic_batching"))
    requests = {AUDIO: clip(), STREAM: clip(), FEATURES: features(repository)}
    found: dict[str, dict[str, list[Load]]] = {}
    report("starting the servers")
    with (
        Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as batched,
        Server(ServerConfig(plain, http_port=0, grpc_port=0, metrics_port=0)) as unbatched,
    ):
        for kind, tensor in requests.items():
            with contextlib.ExitStack() as stack:
                targets = {
                    BATCHED: triton_target(batched.config.http_port, kind, tensor),
                    PLAIN: triton_target(unbatched.config.http_port, kind, tensor),
                }
                others: dict[str, LitServe] = {}
                for name, asked in LITSERVE_KINDS[kind].items():
                    others[name] = stack.enter_context(
                        litserve(repository, WORD, asked, options.threads, MOST_BATCHED)
                    )
                    targets[name] = litserve_target(others[name].port, tensor)
                found[kind] = {name: [] for name in targets}
                for number in range(options.rounds + 1):
                    report(f"{kind}: round {number} of {options.rounds}" if number else f"{kind}: warming up")
                    for name, target in targets.items():
                        with others[name].awake() if name in others else contextlib.nullcontext():
                            load = closed_loop(target, options.clients, options.seconds if number else 1.0)
                        if number:
                            found[kind][name].append(load)
    return {kind: compare(loads) for kind, loads in found.items()}


def compare(loads: Mapping[str, Sequence[Load]]) -> dict[str, Served]:
    """Return the figures of each server against Triton with dynamic batching."""
    rates = {name: [load.per_s for load in each] for name, each in loads.items()}
    served = {}
    for name, each in loads.items():
        latencies = [latency for load in each for latency in load.latencies_ms]
        served[name] = Served(
            per_s=summarize(rates[name]),
            ratio=summarize(ratios(rates[BATCHED], rates[name])),
            p50_ms=float(np.percentile(latencies, 50)),
            p99_ms=float(np.percentile(latencies, 99)),
        )
    return served


def with_threads(repository: Path, threads: int) -> None:
    """Set the number of threads of every ONNX Runtime session in a repository."""

    def change(config: Any) -> None:
        if config.backend == "onnxruntime":
            config.parameters["intra_op_thread_count"].string_value = str(threads)

    change_configs(repository, change)


def change_configs(repository: Path, change: Callable[[Any], None]) -> None:
    """Rewrite the configuration of every model in a repository."""
    for path in repository.glob("*/config.pbtxt"):
        config = text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
        change(config)
        path.write_text(text_format.MessageToString(config), encoding="utf-8")


def clip() -> Array:
    """Return a second of a noisy tone, [1, 16000], float32."""
    seconds = np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    noise = np.random.default_rng(0).standard_normal(SAMPLE_RATE_HZ)
    made: Array = (0.3 * np.sin(2 * np.pi * 440 * seconds) + 0.05 * noise).astype(np.float32)[None]
    return made


def features(repository: Path) -> Array:
    """Return the features of the clip of :func:`clip`, [1, frames, mel bins], float32."""
    extractor = Extractor(repository / "wakeword_decide" / "1")
    return extractor(clip()[0], SAMPLE_RATE_HZ).input_values[None]


def triton_target(port: int, kind: str, tensor: Array) -> Target:
    """Return the request for Triton over HTTP, with its tensors in binary."""
    if kind == FEATURES:
        model = head_model(WORD) + FUSED_SUFFIX
        return infer_target(port, model, {"input_values": tensor})
    words = np.array([[WORD]], np.object_)
    if kind == AUDIO:
        request = ClipsRequest(tensor, np.array([[SAMPLE_RATE_HZ]], np.int64), words)
        return infer_target(port, request.model, encode(request))
    pcm = (tensor * 32767).astype(np.int16)

    def opening() -> tuple[Post, Post]:
        """Open a stream with the first half of a window; each next piece fills a window."""
        half = SAMPLE_RATE_HZ // 2
        turns = Turns()
        first = encode(ListenRequest(words)) | encode(ListenTurn(pcm[:, :half]))
        later = encode(ListenTurn(pcm[:, half:]))
        return _post(first, turns.next()), _post(later, turns.next())

    return replace(infer_target(port, ListenRequest.model, {}), opening=opening)


def infer_target(port: int, model: str, tensors: Mapping[str, Array]) -> Target:
    """Return the request that runs a model of Triton over HTTP once, with its tensors in binary."""
    post = _post(tensors)
    return Target(port, f"/v2/models/{model}/infer", post.body, post.headers)


def _post(tensors: Mapping[str, Array], turn: Turn = NO_SESSION) -> Post:
    return Post(*infer_body(tensors, turn))


def measure_int8(folder: Path, options: WakewordOptions, report: Report) -> dict[str, Quantized]:
    """Export backbone and head of the public sizes in both precisions and time them in turn."""
    backbone, word = write_checkpoints(folder / "public", PUBLIC_CONFIG, gain=1.0)
    exported = {}
    for precision in (Precision.FP32, Precision.INT8):
        exported[precision] = folder / precision.value
        report(f"exporting backbone and head of the public sizes, {precision.value}")
        export("wakeword", backbone, exported[precision], precision)
        export("wakeword_head", word, exported[precision], precision)
    random = np.random.default_rng(0)
    inputs = {
        "wakeword_backbone": random.standard_normal((1, 128, 128)).astype(np.float32),
        head_model(WORD): random.standard_normal((1, 768)).astype(np.float32),
    }
    return {
        model: compare_graphs(
            tensor, options, *(repository / model / "1" / "model.onnx" for repository in exported.values())
        )
        for model, tensor in inputs.items()
    }


def compare_graphs(tensor: Array, options: WakewordOptions, fp32: Path, int8: Path) -> Quantized:
    """Call two graphs in turn with the same tensor."""
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = options.threads
    sessions = [
        onnxruntime.InferenceSession(str(path), session_options, providers=["CPUExecutionProvider"])
        for path in (fp32, int8)
    ]
    feed = {sessions[0].get_inputs()[0].name: tensor}
    outputs = [session.run(None, feed)[0] for session in sessions]
    times: list[list[float]] = [[], []]
    # Call a small graph several times, so that the resolution of the clock does not matter.
    repeats = max(1, round(0.05 / max(_call_s(sessions[0], feed, 3), 1e-6)))
    for _ in range(options.calls):
        for session, kept in zip(sessions, times, strict=True):
            kept.append(_call_s(session, feed, repeats))
    return Quantized(
        fp32.stat().st_size,
        int8.stat().st_size,
        summarize(ratios(*times)),
        relative_l2(outputs[1], outputs[0]),
    )


def _call_s(session: Any, feed: Mapping[str, Array], repeats: int) -> float:
    took = []
    for _ in range(repeats):
        started = time.perf_counter()
        session.run(None, feed)
        took.append(time.perf_counter() - started)
    return statistics.median(took)


def wakeword_json(result: WakewordResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the benchmark as JSON."""
    return {"benchmark": "wakeword", "machine": dict(machine), **asdict(result)}


def print_wakeword(console: Console, result: WakewordResult) -> None:
    """Print both parts as tables."""
    clients, rounds = result.options.clients, result.options.rounds
    for kind, servers in result.served.items():
        table = Table(
            f"{kind}, {clients} clients, {rounds} rounds", "requests/s", "batching ÷ it", "p50, ms",
            "p99, ms", box=box.SIMPLE,
        )  # fmt: skip
        for name, served in servers.items():
            table.add_row(
                name, f"{served.per_s.median:.0f}", spread(served.ratio), f"{served.p50_ms:.1f}",
                f"{served.p99_ms:.1f}",
            )  # fmt: skip
        console.print(table)
    if not result.quantized:
        return
    table = Table(
        "public sizes", "fp32, MB", "int8, MB", "size", "fp32 ÷ int8, time", "rel. L2", box=box.SIMPLE
    )
    for name, found in result.quantized.items():
        sizes = (found.fp32_bytes / 1e6, found.int8_bytes / 1e6)
        table.add_row(
            name, *(f"{size:.1f}" for size in sizes), f"÷ {sizes[0] / sizes[1]:.2f}", spread(found.ratio),
            f"{found.relative_l2:.1e}",
        )  # fmt: skip
    console.print(table)
