"""Capacity benchmark: compares the capacity model with the embedded server, then asks it about fleets.

First :mod:`slipway_benchmarks.capacity.measurements` sends subjects to a real Triton, and the model predicts
their queueing delay. Then the model, with the measured service times and with public ones, answers three
questions: how many replicas N users need, how scaling down affects long jobs, and how full sessions can fill
a fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from rich import box
from rich.console import Console
from rich.table import Table

from slipway_benchmarks.capacity.demands import PUBLIC, airimu_demand, wakeword_demand, world_demand
from slipway_benchmarks.capacity.measurements import (
    Delay,
    MeasurementWindow,
    Subject,
    compared_subjects,
    delay_of,
    measure_service,
    merged_subjects,
    predict,
    read_trace,
    send_openly,
    service_of,
    trace_arguments,
)
from slipway_benchmarks.capacity.scaling import Scaled, SessionBound, Traffic, scale_long_jobs, session_bound
from slipway_benchmarks.pipelines.world import FULL_FROM, play
from slipway_benchmarks.report import spread
from slipway_benchmarks.servers.wakeword import PUBLIC_CONFIG, export, with_threads, write_checkpoints
from slipway_benchmarks.stats import Summary, ratios, summarize
from slipway_client import Client
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_loadtests.capacity.fleet import Routing
from slipway_loadtests.capacity.plan import Answer, Demand, Service, replicas_for
from slipway_loadtests.load.visits import BLOCK_FRAMES, WORLD_FPS
from slipway_serving.system.temporary_folders import TemporaryFolder
from slipway_serving.triton.server import Server, ServerConfig

WORLDS = "universal"
"""World mode that is measured."""
SESSION_FLEETS = ((4, 1), (16, 1), (64, 1), (4, 4), (16, 4))
Report = Callable[[str], None]


@dataclass(frozen=True)
class CapacityOptions:
    """Options of the capacity benchmark.

    Attributes:
        rounds: Number of rounds, each of which measures every subject once; 0 measures nothing.
        requests: Number of requests in each open loop.
        load: Load of each open loop, as a share of the highest measured throughput.
        users: Numbers of users to ask about.
        seed: Seed of the first round's arrivals and of the answers.
    """

    rounds: int = 3
    requests: int = 400
    load: float = 0.7
    users: tuple[int, ...] = (10, 100, 1000)
    seed: int = 0


@dataclass(frozen=True)
class Round:
    """One open loop on the server, and the model's prediction for it.

    Attributes:
        service_s: Mean service time from Triton's trace, in seconds.
        rates: Rates from the same trace, see :class:`slipway_loadtests.capacity.fleet.Fleet`.
        lag_s: Largest delay of the sender, in seconds.
        measured: Queueing delay in Triton's trace.
        predicted: Queueing delay that the model predicts.
    """

    service_s: float
    rates: tuple[float, ...]
    lag_s: float
    measured: Delay
    predicted: Delay


@dataclass(frozen=True)
class Checked:
    """Comparison of the model with the server, for one subject.

    Attributes:
        what: Description of the request.
        rounds: Rounds in their order.
        mean_ratio: Predicted ÷ measured mean queueing delay, by round.
        p95_ratio: Predicted ÷ measured 95th percentile of the queueing delay, by round.
    """

    what: str
    rounds: Sequence[Round]
    mean_ratio: Summary
    p95_ratio: Summary


@dataclass(frozen=True)
class CapacityResult:
    """Result of the capacity benchmark.

    Attributes:
        options: Options of the benchmark.
        checked: Comparisons by served model.
        demands: Demands that were asked about.
        answers: Answers for each demand, number of users and routing.
        traffic: Long jobs of the scaling question.
        scaled: Results of each way of scaling them.
        sessions: Utilization bounds of session fleets.
    """

    options: CapacityOptions
    checked: Mapping[str, Checked]
    demands: Sequence[Demand]
    answers: Mapping[str, Sequence[Answer]]
    traffic: Traffic
    scaled: Sequence[Scaled]
    sessions: Sequence[SessionBound]


def run(options: CapacityOptions, report: Report) -> CapacityResult:
    """Run the benchmark: measure, compare, answer.

    Args:
        options: Options of the benchmark.
        report: Callback that receives a line before each long step.
    """
    checked: Mapping[str, Checked] = {}
    # The families that this machine can measure follow the first entry of PUBLIC.
    demands = list(PUBLIC)
    if options.rounds:
        checked, services = _measure(options, report)
        demands[1:1] = [
            wakeword_demand(services["wakeword"]),
            airimu_demand(services["airimu_stream"]),
            world_demand(services[WORLDS], BLOCK_FRAMES / WORLD_FPS),
        ]
    answers = {}
    for demand in demands:
        report(f"asking the model: {demand.name}")
        answers[demand.name] = [
            replicas_for(demand, users, routing, options.seed)
            for users in options.users
            for routing in get_args(Routing)
        ]
    report("asking the model: scaling and sessions")
    traffic = Traffic()
    scaled = scale_long_jobs(traffic, options.seed)
    bounds = [
        session_bound(gpus, each, routing, seed=options.seed)
        for gpus, each in SESSION_FLEETS
        for routing in get_args(Routing)
    ]
    return CapacityResult(options, checked, demands, answers, traffic, scaled, bounds)


def _measure(options: CapacityOptions, report: Report) -> tuple[dict[str, Checked], dict[str, Service]]:
    with TemporaryFolder("slipway-measurement-") as folder:
        repository = export_subjects(folder, report)
        services = {}
        with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as server:
            for subject in merged_subjects():
                report(f"service times of {subject.model}")
                services[subject.model] = measure_service(server, subject, max(options.requests // 8, 8))
            report("service times of worlds")
            with Client(server.grpc_url) as client:
                blocks = max(options.requests // 8, 8) + FULL_FROM
                took_s = play(client, WORLDS, blocks).took_s[FULL_FROM - 1 :]
            # Worlds take turns block by block, so one block at a time is at work.
            services[WORLDS] = Service(took_s, rates=(1.0,))
        # One thread per graph leaves the client a core, so that sending does not slow the measured server.
        with_threads(repository, 1)
        return check_model(repository, compared_subjects(), options, report), services


def check_model(
    repository: Path, subjects: Sequence[Subject], options: CapacityOptions, report: Report
) -> dict[str, Checked]:
    """Compare the model with a server, for each subject in turn."""
    with TemporaryFolder("slipway-measurement-") as folder:
        trace = folder / "trace.json"
        config = ServerConfig(
            repository, http_port=0, grpc_port=0, metrics_port=0, arguments=trace_arguments(trace)
        )
        windows: dict[str, list[MeasurementWindow]] = {subject.model: [] for subject in subjects}
        with Server(config) as server:
            for number in range(options.rounds):
                report(f"round {number + 1} of {options.rounds}")
                for subject in subjects:
                    seed = options.seed + number
                    windows[subject.model].append(
                        send_openly(server, subject, options.load, options.requests, seed)
                    )
        return {
            subject.model: compare(
                subject, [_round(trace, subject, window) for window in windows[subject.model]]
            )
            for subject in subjects
        }


def _round(trace: Path, subject: Subject, window: MeasurementWindow) -> Round:
    observed = read_trace(trace, subject.model, window)
    service = service_of(observed, subject.together[-1])
    return Round(
        service_s=service.mean_s,
        rates=service.rates,
        lag_s=window.lag_s,
        measured=delay_of(observed.queue_s),
        predicted=predict(service, observed),
    )


def export_subjects(folder: Path, report: Report) -> Path:
    """Export the models that the subjects need; return the repository."""
    repository = folder / "repository"
    for family in ("wan_t2v", "airimu"):
        report(f"exporting {family}, tiny preset")
        run_export(family_named(family), ExportOptions(checkpoint="tiny", repository=repository))
    report("exporting matrix_game, tiny preset")
    parts = (WORLDS, "image_encoder", "vae_encoder", "vae_decoder")
    worlds = ExportOptions(checkpoint="tiny", repository=repository, components=parts, variant=WORLDS)
    run_export(family_named("matrix_game"), worlds)
    report("exporting wakeword, public size")
    backbone, word = write_checkpoints(folder / "public", PUBLIC_CONFIG, gain=1.0)
    export("wakeword", backbone, repository)
    export("wakeword_head", word, repository)
    return repository


def compare(subject: Subject, rounds: Sequence[Round]) -> Checked:
    """Compare the model's delays with the server's, round by round."""
    measured, predicted = [each.measured for each in rounds], [each.predicted for each in rounds]
    mean_s = [[delay.mean_s for delay in delays] for delays in (predicted, measured)]
    p95_s = [[delay.p95_s for delay in delays] for delays in (predicted, measured)]
    return Checked(subject.what, rounds, summarize(ratios(*mean_s)), summarize(ratios(*p95_s)))


def capacity_json(result: CapacityResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the benchmark as JSON."""
    answers = {
        name: [asdict(answer) | {"utilization": answer.utilization} for answer in each]
        for name, each in result.answers.items()
    }
    return {"benchmark": "capacity", "machine": dict(machine), **asdict(result), "answers": answers}


def print_capacity(console: Console, result: CapacityResult) -> None:
    """Print the comparison and the answers as tables."""
    if result.checked:
        console.print(_checked_table(result))
    else:
        console.print("nothing measured: no answers for wakeword, airimu and worlds", highlight=False)
    console.print(_answers_table(result))
    for demand in result.demands:
        console.print(f"{demand.name}: {demand.replica}; {demand.source}", highlight=False, soft_wrap=True)
    traffic = result.traffic
    table = Table(
        f"{result.scaled[0].jobs} jobs of {traffic.job_s:.0f} s in {traffic.waves} waves of "
        f"{traffic.high_per_hour:.0f} and {traffic.low_per_hour:.0f} an hour",
        "lost", "replica-hours wasted", "replica-hours held", "p95 delay, s", box=box.SIMPLE,
    )  # fmt: skip
    for way in result.scaled:
        table.add_row(
            way.name, str(way.lost), f"{way.wasted_hours:.1f}", f"{way.held_hours:.0f}", f"{way.p95_s:.0f}"
        )
    console.print(table)
    table = Table("sessions, 1 % refused", "free place anywhere", "place by hash", box=box.SIMPLE)
    by_fleet = {(each.gpus, each.sessions_each, each.routing): each.utilization for each in result.sessions}
    for gpus, each in SESSION_FLEETS:
        shares = (f"{by_fleet[gpus, each, routing]:.0%}" for routing in get_args(Routing))
        table.add_row(f"{gpus} GPUs, {each} on each", *shares)
    console.print(table)


def _checked_table(result: CapacityResult) -> Table:
    options = result.options
    table = Table(
        f"{options.rounds} rounds of {options.requests} requests at load {options.load:g}", "service, ms",
        "mean delay, ms", "model ÷ server", "p95 delay, ms", "model ÷ server", box=box.SIMPLE,
    )  # fmt: skip
    for model, checked in result.checked.items():
        service_ms, mean_ms, p95_ms = (
            spread(summarize([1000 * value for value in values]), 0)
            for values in zip(
                *((each.service_s, each.measured.mean_s, each.measured.p95_s) for each in checked.rounds),
                strict=True,
            )
        )
        table.add_row(
            f"{model}: {checked.what}", service_ms, mean_ms, spread(checked.mean_ratio), p95_ms,
            spread(checked.p95_ratio),
        )  # fmt: skip
    return table


def _answers_table(result: CapacityResult) -> Table:
    heads = [f"{users:,} users" for users in result.options.users]
    table = Table("replicas", "service, s", "every", "p95 delay", "routing", *heads, box=box.SIMPLE)
    for demand in result.demands:
        for routing in get_args(Routing):
            chosen = [answer for answer in result.answers[demand.name] if answer.routing == routing]
            cells = (f"{answer.replicas} ({answer.utilization:.0%})" for answer in chosen)
            table.add_row(
                demand.name, f"{demand.service_mean_s:.3g}", f"{demand.each_s:g} s", f"{demand.p95_s:g} s",
                routing, *cells,
            )  # fmt: skip
    return table
