"""Gateway benchmark: what the gateway adds to a video, and how it answers with a long queue and a crowd.

A server of its own serves an exported repository. First, the same videos are made through the gateway and
directly by gRPC, in turn. Then a server without the video's model takes the place of the first one. The
gateway still knows the model from its database, so it accepts jobs and starts none: its queue fills up,
watchers follow the jobs, and sockets send sound to the models that are served.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import uvloop

from slipway_benchmarks.gateway.gateway_process import running_gateway
from slipway_benchmarks.gateway.pairs import (
    PairsFound,
    compare_videos,
    direct_video,
    fields_of_video,
    gateway_video,
)
from slipway_benchmarks.gateway.waiting_jobs import QueueFound, QueueOptions, measure_queue
from slipway_benchmarks.processes import serving
from slipway_client import Client, ListenRequest, TextToVideoRequest
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.protocol.errors import raise_all
from slipway_serving.system.temporary_folders import TemporaryFolder

FAMILY, PRESET = "wan_t2v", "small"
SOUND_PRESETS = {"wakeword": "tiny", "wakeword_head": "tiny"}
REQUEST = TextToVideoRequest(
    prompt="A serene lake at sunset", frames=17, height=128, width=128, steps=20, seed=1
)
_READY_TIMEOUT_S = 600
# Short videos that reach every instance of the pipeline.
_WARM_UP_VIDEOS = 6
_TIMEOUT_S = 600.0

Report = Callable[[str], None]


@dataclass(frozen=True)
class GatewayOptions:
    """Options of the gateway benchmark.

    Attributes:
        repository: Exported repository with Wan and wake words; None to export the presets `small` and
            `tiny`.
        request: Request for the first video; the next ones count its seed up.
        pairs: Number of videos through the gateway, and of direct ones.
        queue: Size of the queue and of its crowd.

    Raises:
        InvalidRequest: Options do not fit each other; the message names each one.
    """

    repository: Path | None = None
    request: TextToVideoRequest = REQUEST
    pairs: int = 20
    queue: QueueOptions = field(default_factory=QueueOptions)

    def __post_init__(self) -> None:
        problems = []
        if self.queue.watchers > self.queue.jobs // 2:
            problems.append(
                f"watchers must be at most half of jobs, {self.queue.jobs // 2}, got {self.queue.watchers}"
            )
        wanted = [FAMILY, *([ListenRequest.model] if self.queue.sockets else [])]
        for model in wanted if self.repository is not None else ():
            assert self.repository is not None
            if not (self.repository / model / "config.pbtxt").is_file():
                problems.append(
                    f"repository must contain the model {model}, got {self.repository}; try `slipway export`"
                )
        raise_all("bench", problems)


@dataclass(frozen=True)
class GatewayResult:
    """Result of the gateway benchmark."""

    pairs: PairsFound
    pairs_load_average: float
    queue: QueueFound
    options: GatewayOptions = field(default_factory=GatewayOptions)


def run(options: GatewayOptions, report: Report) -> GatewayResult:
    """Measure both parts, one after the other.

    Args:
        options: Options of the benchmark.
        report: Callback that receives a line before each long step.

    Raises:
        SlipwayError: A server or a gateway does not become ready, or a video fails.
    """
    with TemporaryFolder("slipway-measurement-") as folder:
        repository = options.repository or _exported(folder / "models", report)
        report("starting Triton and the gateway")
        pairs = _measure_pairs(repository, folder, options, report)
        load_average = os.getloadavg()[0]
        report("starting Triton without the video's model, and the gateway")
        rest = _without(FAMILY, repository, folder / "rest")
        with (
            serving(rest, _READY_TIMEOUT_S, folder / "rest.log") as server,
            running_gateway(
                server.url, folder / "data", folder / "queue.log", _queue_options(options)
            ) as gateway,
        ):
            server.tree.close()
            queue = uvloop.run(
                measure_queue(gateway, fields_of_video(options.request), options.queue, report)
            )
    return GatewayResult(pairs, load_average, queue, options)


def _queue_options(options: GatewayOptions) -> list[str]:
    return ["--max-waiting", str(options.queue.jobs)]


def _measure_pairs(repository: Path, folder: Path, options: GatewayOptions, report: Report) -> PairsFound:
    with (
        serving(repository, _READY_TIMEOUT_S, folder / "serve.log") as server,
        running_gateway(server.url, folder / "data", folder / "gateway.log") as gateway,
        Client(server.url) as client,
        httpx.Client(base_url=gateway.url, timeout=_TIMEOUT_S, trust_env=False) as http,
    ):
        server.tree.close()
        report("warming up")
        for number in range(_WARM_UP_VIDEOS):
            short = replace(options.request, steps=2, seed=10**6 + number)
            direct_video(client, short)
            gateway_video(http, short)
        return compare_videos(
            lambda request: direct_video(client, request),
            lambda request: gateway_video(http, request),
            gateway.tree.cpu_s,
            options.request,
            options.pairs,
            report,
        )


def _exported(repository: Path, report: Report) -> Path:
    for family, preset in {FAMILY: PRESET, **SOUND_PRESETS}.items():
        report(f"exporting {preset} of {family}")
        run_export(family_named(family), ExportOptions(preset, repository))
    return repository


def _without(family: str, repository: Path, target: Path) -> Path:
    """Return a copy of a repository, by hard links, without the models of a family."""
    target.mkdir()
    for model in repository.iterdir():
        if (model / "config.pbtxt").is_file() and not model.name.startswith(family):
            shutil.copytree(model, target / model.name, copy_function=_link)
    return target


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
