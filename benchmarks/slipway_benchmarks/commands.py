"""`slipway bench`: the commands of all benchmarks.

Each command turns flags into options, runs one benchmark, and leaves tables on stdout and JSON and a chart in
a folder. A command lies beside its benchmark, which it imports only when it runs.
"""

from __future__ import annotations

import typer

from slipway_benchmarks.capacity.command import capacity_bench
from slipway_benchmarks.denoiser.command import denoiser
from slipway_benchmarks.engines.command import engines
from slipway_benchmarks.gateway.command import gateway
from slipway_benchmarks.pipelines.drain_command import drain
from slipway_benchmarks.pipelines.real_size_command import real_size
from slipway_benchmarks.pipelines.stopping_command import stopping
from slipway_benchmarks.pipelines.video_command import video
from slipway_benchmarks.pipelines.world_command import world
from slipway_benchmarks.quality.command import quality
from slipway_benchmarks.servers.backends_command import backends
from slipway_benchmarks.servers.wakeword_command import wakeword

bench = typer.Typer(
    help="Measure: our graphs beside PyTorch, Triton beside the same loop without it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

bench.command("backends")(backends)
bench.command("denoiser")(denoiser)
bench.command("engines")(engines)
bench.command("video")(video)
bench.command("stopping")(stopping)
bench.command("drain")(drain)
bench.command("gateway")(gateway)
bench.command("wakeword")(wakeword)
bench.command("world")(world)
bench.command("quality")(quality)
bench.command("capacity")(capacity_bench)
bench.command("real-size")(real_size)
