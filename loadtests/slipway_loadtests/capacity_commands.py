"""`slipway capacity`: a promise and users in, the number of replicas out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from slipway_serving.protocol.durations import checked_option
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from slipway_loadtests.capacity.plan import Service


def capacity(
    each_s: Annotated[
        float,
        typer.Option(help="Mean time between requests of a user, seconds, above 0.", callback=checked_option),
    ],
    p95_s: Annotated[
        float,
        typer.Option(
            help="Delay beyond the service time that 95 of 100 may see, seconds, above 0.",
            callback=checked_option,
        ),
    ],
    users: Annotated[list[int], typer.Option(min=1, help="May be repeated.")],
    service_s: Annotated[
        float | None,
        typer.Option(help="Time of a request alone on a replica, seconds, above 0.", callback=checked_option),
    ] = None,
    at_work: Annotated[
        int | None,
        typer.Option(min=1, help="Requests that one replica works on at full speed, by default 1."),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="MODEL.json of `slipway saturate`, instead of --service-s and --at-work."),
    ] = None,
    streamed: Annotated[
        bool, typer.Option("--streamed", help="Each user sends at fixed times, always to the same replica.")
    ] = False,
    routing: Annotated[
        Literal["least", "random"],
        typer.Option(help="least: a gateway that counts requests; random: connections of a Service."),
    ] = "least",
) -> None:
    """Find by simulation how many replicas so many users need for a promised delay."""
    from slipway_loadtests.capacity.plan import Demand, replicas_for

    service = _service(service_s, at_work, measured)
    demand = Demand("demand", service.alone_s, each_s, p95_s, service.rates, streamed)
    for count in users:
        answer = replicas_for(demand, count, routing)
        typer.echo(
            f"{count} users: {answer.replicas} replicas, {answer.utilization:.0%} of them busy,"
            f" p95 delay {answer.p95_s:.3g} s"
        )


def _service(service_s: float | None, at_work: int | None, measured: Path | None) -> Service:
    """Return the service of one replica, as the options state it or as a measurement has it.

    Raises:
        InvalidRequest: Neither is given, or both, or the file is no report of `slipway saturate`.
    """
    from slipway_loadtests.capacity.plan import Service

    if (service_s is None) == (measured is None) or (measured is not None and at_work is not None):
        raise InvalidRequest(
            "capacity: the service must be given as --service-s, with --at-work, or as --measured, got"
            f" {'neither' if measured is None else 'both'}; try --service-s 2"
        )
    if service_s is not None:
        return Service((service_s,), (1.0,) * (at_work or 1))
    try:
        found = json.loads(Path(measured or "").read_text(encoding="utf-8"))["service"]
        return Service(tuple(map(float, found["alone_s"])), tuple(map(float, found["rates"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"capacity: --measured must be MODEL.json of slipway saturate, got {measured}"
            f" ({type(error).__name__}: {error}); try slipway saturate --family NAME --output FOLDER"
        ) from None
