"""`slipway load`: flags become a plan, and this process becomes Locust, which runs it.

`slipway saturate` has Locust run two plans in turn, the second made of what the first has found.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import yaml

from slipway_cli.files import replaced_files
from slipway_cli.server_options import Overwrite, SpokenProtocol, TlsFolder, Url
from slipway_client.address import Address, address_of
from slipway_loadtests.load.gateway_options import DEFAULT_GATEWAY, KEY_VARIABLE
from slipway_serving.protocol.durations import checked_option
from slipway_serving.protocol.errors import InvalidRequest, NotReady, Unrecoverable, raise_all
from slipway_serving.protocol.texts import printable

if TYPE_CHECKING:
    from slipway_loadtests.load.plan import Plan
    from slipway_loadtests.load.summary import ModelSummary
    from slipway_loadtests.load.visits import Use

Families = Annotated[
    list[str] | None,
    typer.Option(help="Family whose served models get the load; may be repeated.", metavar="NAME"),
]
Models = Annotated[
    list[str] | None,
    typer.Option(help="Only this served model of the families; may be repeated.", metavar="NAME"),
]
Timeout = Annotated[
    float, typer.Option(help="Limit of each request, seconds, above 0.", callback=checked_option)
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        help="A field of a model's requests, e.g. wan_t2v.frames=17; may be repeated.",
        metavar="MODEL.FIELD=VALUE",
    ),
]
Slo = Annotated[Path | None, typer.Option(help="YAML file with the objectives of each model.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the times and contents of requests.")]
Wait = Annotated[
    float,
    typer.Option(min=0, help="Longest wait for the server to be ready, seconds.", callback=checked_option),
]
_PORT = 5557
_GATEWAY_ANSWER_S = 30.0


def load(
    url: Url = None,
    protocol: SpokenProtocol = None,
    tls: TlsFolder = None,
    via: Annotated[
        Literal["server", "gateway"],
        typer.Option(help="Call the server at --url, or the gateway at --gateway, which makes videos only."),
    ] = "server",
    gateway: Annotated[
        str, typer.Option(help="Address of the gateway, with --via gateway.", metavar="URL")
    ] = DEFAULT_GATEWAY,
    key: Annotated[
        str | None,
        typer.Option(
            help="Key of the gateway's users; every worker needs it, too.",
            envvar=KEY_VARIABLE,
            show_envvar=True,
        ),
    ] = None,
    family: Families = None,
    model: Models = None,
    shape: Annotated[
        Literal["steady", "ramp", "spike", "soak"], typer.Option(help="Course of the load over time.")
    ] = "steady",
    users: Annotated[int, typer.Option(min=1, help="Most simultaneous users, with closed arrivals.")] = 4,
    arrivals: Annotated[
        Literal["closed", "constant", "poisson", "gamma"],
        typer.Option(
            help="closed: a user sends the next request after the answer; otherwise, --per-s sets the rate."
        ),
    ] = "closed",
    per_s: Annotated[
        float,
        typer.Option(
            min=0,
            help="Highest rate of requests or sessions per second, with open arrivals.",
            callback=checked_option,
        ),
    ] = 1.0,
    burst: Annotated[
        float, typer.Option(help="Squared coefficient of variation of gamma arrivals, above 0; 1 is poisson.")
    ] = 4.0,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Duration of the load, seconds, above 0; by default 60, or 1800 for a soak.",
            callback=checked_option,
        ),
    ] = None,
    stages: Annotated[
        Path | None,
        typer.Option(
            help="YAML list of stages with seconds and level (users, or per second), instead of --shape."
        ),
    ] = None,
    think_s: Annotated[
        float,
        typer.Option(
            min=0, help="Mean think time of a user, seconds, with closed arrivals.", callback=checked_option
        ),
    ] = 0.0,
    session_s: Annotated[
        float,
        typer.Option(
            help="Duration of a session with a world or a stream, seconds, above 0.", callback=checked_option
        ),
    ] = 10.0,
    cancel_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of videos that are cancelled after one step, 0 to 1.")
    ] = 0.0,
    pause_share: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of a gateway's videos that are paused after one step and resumed, 0 to 1.",
        ),
    ] = 0.0,
    paced: Annotated[
        bool,
        typer.Option(
            "--paced/--unpaced",
            help="Send the turns of a session in real time, or each one after the answer to the one before.",
        ),
    ] = True,
    timeout_s: Timeout = 120.0,
    field: Fields = None,
    slo: Slo = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Server's metrics endpoint, from which the report tells waiting from work.",
            metavar="HOST:PORT",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="File for the report as an HTML page with charts.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="File for the report as JSON.")] = None,
    overwrite: Overwrite = False,
    seed: Seed = 0,
    wait_s: Wait = 0.0,
    workers: Annotated[
        int,
        typer.Option(
            min=0, help="Number of workers to wait for, which send the load; with 0, this process sends it."
        ),
    ] = 0,
    worker_of: Annotated[
        str | None,
        typer.Option(
            help="Send load as a worker of this master, which sets all other options.", metavar="HOST[:PORT]"
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the master for its workers.")] = _PORT,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Locust's log.")] = False,
) -> None:
    """Send the load of a family's users to a running server, and report; 1 where an objective was broken."""
    _require_locust()
    from slipway_loadtests.load.plan import SOAK_S, Plan, read_slo, read_stages, stages_of

    if key is not None:
        os.environ[KEY_VARIABLE] = key  # Locust's process reads it there
    if worker_of is not None:
        host, _, own_port = worker_of.partition(":")
        _become(["--worker", "--master-host", host, "--master-port", own_port or str(port)], verbose)
    raise_all("load", replaced_files({"--html": html, "--json": json}, overwrite=overwrite))
    asked = _asked("load", family, model)
    if seconds is None:
        seconds = SOAK_S if shape == "soak" else 60.0
    level = float(users) if arrivals == "closed" else per_s
    if via == "gateway":
        address = Address(gateway.rstrip("/"), "http")
        names = tuple(use.gateway_user for use in _served_by_gateway(address.url, key, asked, wait_s))
    else:
        address = address_of(url, protocol)
        names = tuple(use.user for use in _served("load", address, tls, asked, wait_s))
    plan = Plan(
        url=address.url,
        protocol=address.protocol,
        tls=None if tls is None else str(tls.resolve()),
        users=names,
        stages=read_stages(stages)
        if stages
        else stages_of(shape, level, seconds, whole=arrivals == "closed"),
        arrivals=arrivals,
        burst=burst,
        think_s=think_s,
        session_s=session_s,
        paced=paced,
        cancel_share=cancel_share,
        pause_share=pause_share,
        timeout_s=timeout_s,
        workers=max(workers, 1),
        seed=seed,
        fields=stated_fields("load", field or ()),
        slo=read_slo(slo) if slo else {},
        metrics=metrics,
        html=None if html is None else str(html),
        json=None if json is None else str(json),
    )
    _become(_arguments(plan, port if workers else None), verbose)


def saturate(
    url: Url = None,
    protocol: SpokenProtocol = None,
    tls: TlsFolder = None,
    family: Families = None,
    model: Models = None,
    users: Annotated[
        int, typer.Option(min=1, help="Most simultaneous users of the closed run, which begins with one.")
    ] = 8,
    seconds: Annotated[
        float, typer.Option(help="Duration of each stage, seconds, above 0.", callback=checked_option)
    ] = 5.0,
    timeout_s: Timeout = 30.0,
    field: Fields = None,
    slo: Slo = None,
    seed: Seed = 0,
    wait_s: Wait = 0.0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for MODEL.json and the reports of the runs.")
    ] = Path("out/saturation"),
) -> None:
    """Find the knee of each served model of a family, and what becomes of three times too much load."""
    _require_locust()
    from slipway_loadtests.load import report
    from slipway_loadtests.load.plan import Plan, read_slo
    from slipway_loadtests.load.saturation import lines
    from slipway_loadtests.load.saturation import saturate as find

    address = address_of(url, protocol)
    uses = _served("saturate", address, tls, _asked("saturate", family, model), wait_s)
    if unpaced := [use.model for use in uses if use.without_pace]:
        raise InvalidRequest(
            f"saturate: a session must have a pace, got {', '.join(unpaced)}, whose request class does"
            " not state turn_s; try --model with the other models"
        )
    plan = Plan(
        url=address.url,
        protocol=address.protocol,
        tls=None if tls is None else str(tls.resolve()),
        timeout_s=timeout_s,
        seed=seed,
        fields=stated_fields("saturate", field or ()),
        slo=read_slo(slo) if slo else {},
    )
    found = []
    for use in uses:

        def run(name: str, plan: Plan, model: str = use.model) -> ModelSummary:
            return _run(plan, output / f"{model}-{name}.json", model)

        found.append(find(use, plan, users, seconds, run))
        report.write_saturation(output / f"{use.model}.json", found[-1])
    for line in lines(found):
        typer.echo(printable(line))


def _require_locust() -> None:
    if find_spec("locust") is None:
        raise ModuleNotFoundError("locust", name="locust")


def _asked(where: str, family: Sequence[str] | None, model: Sequence[str] | None) -> tuple[Use, ...]:
    """Return how the models of families are used, of those that are asked for; for the command `where`."""
    from slipway_loadtests.load.uses import uses_of

    if not family:
        raise InvalidRequest(f"{where}: family must be given, got none; try --family wan_t2v")
    try:
        uses = [use for name in dict.fromkeys(family) for use in uses_of(name)]
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from None
    if unknown := sorted(set(model or ()) - {use.model for use in uses}):
        raise InvalidRequest(
            f"{where}: model must be one of {', '.join(use.model for use in uses)}, got {', '.join(unknown)}"
        )
    return tuple(use for use in uses if not model or use.model in model)


def _served(
    where: str, address: Address, tls: Path | None, uses: Sequence[Use], wait_s: float
) -> tuple[Use, ...]:
    """Return those uses whose model the server serves.

    Raises:
        NotReady: it serves none, or does not answer; for the command `where`.
    """
    from slipway_client.client import Client

    with Client(*address, tls=tls) as client:
        until_s = time.monotonic() + wait_s
        while not client.is_ready() and time.monotonic() < until_s:
            time.sleep(1.0)
        try:
            client.check_ready()
        except NotReady as error:
            raise NotReady(f"{where}: server must be ready at {address.url}, got: {error}") from None
        found = tuple(use for use in uses if client.is_ready(use.model))
    if not found:
        raise NotReady(
            f"{where}: server must serve one of {', '.join(use.model for use in uses)}, got none at"
            f" {address.url}; try --family"
        )
    return found


def _served_by_gateway(url: str, key: str | None, uses: Sequence[Use], wait_s: float) -> tuple[Use, ...]:
    """Return those uses for videos with whose model a gateway is ready.

    Raises:
        InvalidRequest: No use makes videos.
        NotReady: The gateway does not answer, or has none of the models.
    """
    from slipway_loadtests.load.gateway import GatewayCaller

    videos = tuple(use for use in uses if use.video is not None)
    if not videos:
        raise InvalidRequest(
            f"load: family must make videos with --via gateway, got {', '.join(use.model for use in uses)};"
            " try --family wan_t2v"
        )
    caller = GatewayCaller(url, key, _GATEWAY_ANSWER_S)
    until_s = time.monotonic() + wait_s
    while True:
        try:
            served = caller.models()
            found = tuple(use for use in videos if use.model in served)
            if found:
                return found
            problem = NotReady(
                f"load: gateway must have a server that is ready with one of"
                f" {', '.join(use.model for use in videos)}, got none at {url}"
            )
        except NotReady as error:
            problem = NotReady(f"load: gateway must be ready at {url}, got: {error}; try --gateway")
        if time.monotonic() >= until_s:
            raise problem from None
        time.sleep(1.0)


def stated_fields(where: str, texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return fields of models' requests, by model, from MODEL.FIELD=VALUE each.

    Raises:
        InvalidRequest: a text has another form; for the command `where`.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        model, dot, key = name.partition(".")
        if not (equals and dot and model and key):
            raise InvalidRequest(
                f"{where}: field must be MODEL.FIELD=VALUE, got {text!r}; try wan_t2v.frames=17"
            )
        found.setdefault(model, {})[key] = yaml.safe_load(value)
    return found


def _arguments(plan: Plan, port: int | None) -> list[str]:
    # The objectives decide whether the run passed, so failed requests do not change Locust's exit code.
    arguments = ["--headless", "--only-summary", "--exit-code-on-error", "0", "--plan", plan.text()]
    if port is not None:
        arguments += ["--master", "--master-bind-port", str(port), "--expect-workers", str(plan.workers)]
    return arguments


def _run(plan: Plan, data: Path, model: str) -> ModelSummary:
    """Have a plan of one model run, with its reports as a page and as data; return what became of it.

    Raises:
        Unrecoverable: it did not come to a report, or its user could not begin.
    """
    from slipway_loadtests.load.report import read_json

    data.unlink(missing_ok=True)
    plan = dataclasses.replace(plan, json=str(data), html=str(data.with_suffix(".html")))
    done = subprocess.run(
        _locust(_arguments(plan, None), verbose=False), capture_output=True, text=True, check=False
    )
    summary = read_json(data) if data.exists() else None
    if summary is None or summary.refusals:
        said = (done.stdout + done.stderr).strip() if summary is None else summary.refusals[0]
        raise Unrecoverable(f"saturate: Locust must come to a report of {model}, got {said[-2000:]}")
    return summary.models[model]


def _become(arguments: Sequence[str], verbose: bool) -> None:
    """Go on as Locust: it must patch the standard library before anything else is imported."""
    sys.stdout.flush()
    os.execv(sys.executable, _locust(arguments, verbose))


def _locust(arguments: Sequence[str], verbose: bool) -> list[str]:
    from slipway_loadtests import load as package

    file = Path(str(package.__file__)).with_name("locustfile.py")
    said = ["--loglevel", "INFO" if verbose else "ERROR"]
    return [sys.executable, "-m", "locust", "-f", str(file), *said, *arguments]
