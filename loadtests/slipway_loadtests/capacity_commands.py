"""`slipway capacity`: a promise and users in, the number of replicas out."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from slipway_serving.protocol.durations import checked_option


def capacity(
    service_s: Annotated[
        float,
        typer.Option(help="Time of a request alone on a replica, seconds, above 0.", callback=checked_option),
    ],
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
    at_work: Annotated[
        int, typer.Option(min=1, help="Requests that one replica works on at full speed.")
    ] = 1,
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

    demand = Demand("demand", (service_s,), each_s, p95_s, (1.0,) * at_work, streamed)
    for count in users:
        answer = replicas_for(demand, count, routing)
        typer.echo(
            f"{count} users: {answer.replicas} replicas, {answer.utilization:.0%} of them busy,"
            f" p95 delay {answer.p95_s:.3g} s"
        )
