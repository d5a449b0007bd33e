"""`slipway soak`: flags in, mixed traffic for minutes or many requests, then lines, JSON and a chart."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slipway_serving.protocol.durations import checked_option
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable, raise_all
from slipway_serving.protocol.texts import printable

_MINUTES = 30.0


def soak(
    repository: Annotated[
        Path | None,
        typer.Option(help="Model repository to serve and test.", metavar="DIR", show_default=False),
    ] = None,
    # This option ignores SLIPWAY_URL, because soak serves a repository of its own by default.
    url: Annotated[
        str | None,
        typer.Option(
            help="gRPC or HTTP port of a running server on this machine to test.",
            metavar="HOST:PORT",
        ),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option(
            help="Family whose served models are tested, by default every one; may be repeated.",
            metavar="NAME",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Duration of the traffic, minutes, above 0; by default 30.", callback=checked_option
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of requests to send instead of --minutes; memory is judged at the end."
        ),
    ] = None,
    kill_every: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --requests: number of requests between two kills of a model's process."
        ),
    ] = None,
    leak: Annotated[
        bool,
        typer.Option("--leak", help="Also serve a model that leaks memory, to check that the test finds it."),
    ] = False,
    callers: Annotated[int, typer.Option(min=1, help="Number of callers that send at the same time.")] = 8,
    limit_s: Annotated[
        float,
        typer.Option(
            help="Longest wait for an answer, seconds, above 0; then the request counts as hung.",
            callback=checked_option,
        ),
    ] = 120.0,
    growth: Annotated[
        float, typer.Option(min=0, help="Largest growth of resources that counts as flat, percent per hour.")
    ] = 10.0,
    slowing: Annotated[
        float,
        typer.Option(min=0, help="Largest growth of the p95 latency that counts as flat, percent per hour."),
    ] = 50.0,
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="A field of a model's requests, e.g. wan_t2v.frames=17; may be repeated.",
            metavar="MODEL.FIELD=VALUE",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of requests and kills.")] = 0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the report, the chart and the server's log.")
    ] = Path("out/soak"),
) -> None:
    """Send mixed traffic of every family that a server serves; 1 where it did not stay as it was."""
    _check(repository, url, minutes, requests, kill_every, limit_s, leak=leak)
    from slipway_loadtests.json_report import write_json
    from slipway_loadtests.load_commands import stated_fields
    from slipway_loadtests.machine import machine_facts
    from slipway_loadtests.soak import report, running
    from slipway_loadtests.soak.chart import draw_soak
    from slipway_loadtests.soak.resources import server_at
    from slipway_loadtests.soak.sampled import all_kinds, of_families
    from slipway_loadtests.soak.verdict import Allowed
    from slipway_loadtests.soak.workload import stated

    fields = stated_fields("soak", field or ())
    every = of_families(all_kinds(limit_s, fields), family or ())
    asked = {kind.model: kind for kind in every}
    if unknown := sorted(set(fields) - set(asked)):
        raise InvalidRequest(f"soak: field must be of one of {', '.join(asked)}, got {', '.join(unknown)}")
    chosen = [
        stated(kind, fields.get(model, {})) if kind.fit is None else kind for model, kind in asked.items()
    ]
    options = running.Options(
        minutes=None if requests is not None else _MINUTES if minutes is None else minutes,
        requests=requests,
        callers=callers,
        kill_every=kill_every,
        leaks=leak,
        limit_s=limit_s,
        seed=seed,
        allowed=Allowed(growth, slowing),
    )
    machine = machine_facts()
    output.mkdir(parents=True, exist_ok=True)
    if repository is not None:
        result = running.soak(repository, chosen, options, output / "tritonserver.log")
    else:
        result = running.soak_at(*server_at(url or ""), chosen, options)
    write_json(report.soak_json(result, machine), output / "soak.json")
    draw_soak(result, output / "soak.png")
    for line in report.lines(result):
        print(printable(line))
    print(f"report: {output / 'soak.json'}", file=sys.stderr)
    if result.broken:
        raise Unrecoverable(f"soak: {' | '.join(result.broken)}")


def _check(
    repository: Path | None,
    url: str | None,
    minutes: float | None,
    requests: int | None,
    kill_every: int | None,
    limit_s: float,
    *,
    leak: bool,
) -> None:
    """Raise InvalidRequest where the flags do not go together."""
    problems = []
    if (repository is None) == (url is None):
        problems.append("repository or url must be given, one of them; try --repository DIR")
    if minutes is not None and (requests is not None or not minutes > 0):
        problems.append(f"minutes must be above 0 and without requests, got {minutes:g}; try one of them")
    if kill_every is not None and requests is None:
        problems.append(f"kill_every must come with requests, got {kill_every} without; try --requests 3000")
    if leak and (requests is not None or repository is None):
        problems.append("leak must come with repository and minutes, got it without; try --minutes 5")
    if not limit_s > 0:
        problems.append(f"limit_s must be above 0, got {limit_s:g}")
    raise_all("soak", problems)
