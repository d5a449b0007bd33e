"""One run in Locust: it reads the plan, collects outcomes, and writes the report at the end.

Locust itself spawns users and counts answers. Our outcomes hold what Locust cannot count; workers send them
to their master with Locust's own reports. The locustfile imports this module.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from locust import LoadTestShape, events
from locust.runners import LocalRunner, MasterRunner, WorkerRunner

from slipway_client.address import Address, address_of
from slipway_client.client import Client
from slipway_loadtests.load import report
from slipway_loadtests.load.gateway_options import KEY_VARIABLE
from slipway_loadtests.load.outcomes import ANSWERED, CANCELLED, Outcome, now_s
from slipway_loadtests.load.plan import Plan, read_plan
from slipway_loadtests.load.queues import Queues, read_queues
from slipway_loadtests.load.summary import summarize
from slipway_serving.protocol.errors import SlipwayError
from slipway_serving.protocol.texts import printable

_LOG = logging.getLogger(__name__)
_AT_ONCE = 100.0  # users per second; Locust warns above
_KEY = "slipway"
# Delay before users on other machines start, so that the order to start reaches all of them.
_LEAD_S = 1.0


class LoadTestRun:
    """State of the run in one process.

    Args:
        environment: Environment of Locust.
        plan: Plan of the run.

    Attributes:
        plan: Plan of the run.
        begun_s: Time at which it began, in seconds since the epoch.
        until_s: Time at which its last stage ends, in seconds since the epoch.
        sources: Number of sources of open arrivals in all processes.
        key: Key of the users of a gateway; None if they have none.
    """

    def __init__(self, environment: Any, plan: Plan, key: str | None = None) -> None:
        self._environment = environment
        self._unsent: list[Outcome] = []
        self.plan, self.key = plan, key
        self.sources = 1
        self.begin(now_s())

    def begin(self, begun_s: float) -> None:
        """Start the clock at a time, and clear the outcomes."""
        self.begun_s = begun_s
        self.until_s = self.begun_s + self.plan.seconds if self.plan.stages else float("inf")
        self.outcomes: list[Outcome] = []
        self.refusals: dict[str, None] = {}
        self.queues: Queues | None = read_queues(self.plan.metrics) if self.plan.metrics else None

    @cached_property
    def address(self) -> Address:
        """Address of the server and its protocol."""
        return address_of(self.plan.url or self._environment.host or None, self.plan.protocol)

    def keep(self, outcome: Outcome) -> None:
        """Record an outcome and pass it to Locust's statistics."""
        self.outcomes.append(outcome)
        failed = outcome.ended not in (ANSWERED, CANCELLED)
        self._environment.events.request.fire(
            request_type=self.address.protocol,
            name=outcome.model,
            response_time=1000 * (outcome.ended_s - outcome.due_s),
            response_length=0,
            exception=RuntimeError(printable(f"{outcome.ended}: {outcome.said}")) if failed else None,
            context={},
        )

    def refuse(self, text: str) -> None:
        """Record why users could not start."""
        text = printable(text)
        if text not in self.refusals:
            _LOG.error(text)
            self.refusals[text] = None

    def tell(self, client_id: str, data: dict[str, Any]) -> None:
        """Add a worker's outcomes to its report to the master, and clear them."""
        data[_KEY] = {
            "outcomes": [dataclasses.asdict(each) for each in self.outcomes],
            "refusals": list(self.refusals),
        }
        self.outcomes = []

    def hear(self, client_id: str, data: dict[str, Any]) -> None:
        """Record the outcomes in a worker's report."""
        told = data[_KEY]
        self.outcomes += [
            Outcome(**{**each, "measures": {name: tuple(v) for name, v in each["measures"].items()}})
            for each in told["outcomes"]
        ]
        for text in told["refusals"]:
            self.refuse(text)


class Stages(LoadTestShape):  # type: ignore[misc]
    """The plan's stages as Locust's load shape: the number of users over time."""

    def __init__(self, run: LoadTestRun, classes: int) -> None:
        super().__init__()
        self._run, self._classes = run, classes

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users and the number to spawn per second, or None at the end."""
        plan = self._run.plan
        stage = plan.stage_at(now_s() - self._run.begun_s)
        if stage is None:
            return None
        users = round(stage.level) if plan.arrivals == "closed" else self._classes * plan.workers
        return users, _AT_ONCE


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _add_options(parser: Any) -> None:
    parser.add_argument(
        "--plan",
        default="{}",
        metavar="FILE|JSON",
        help="Slipway's plan: arrivals, stages, SLO, reports; see docs/operate/load_tests.md",
    )


@events.init.add_listener  # type: ignore[untyped-decorator]
def _begin(environment: Any, runner: Any, **_: Any) -> None:
    options = environment.parsed_options
    plan = read_plan(options.plan)
    run = environment.slipway = LoadTestRun(environment, plan, os.environ.get(KEY_VARIABLE))
    if run.plan.users:
        environment.user_classes = [
            each for each in environment.user_classes if each.__name__ in run.plan.users
        ]
    elif not options.user_classes:
        # The host is a server, unless somebody names the users of a gateway.
        environment.user_classes = [each for each in environment.user_classes if not each.via_gateway]
    if isinstance(runner, WorkerRunner):
        environment.events.report_to_master.add_listener(run.tell)
        return
    environment.events.worker_report.add_listener(run.hear)
    classes = len(environment.user_classes)
    run.sources = classes * run.plan.workers
    if run.plan.stages:
        environment.shape_class = Stages(run, classes)
        environment.shape_class.runner = runner
    if environment.stop_timeout == 0:
        environment.stop_timeout = run.plan.timeout_s


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def _started(environment: Any, **_: Any) -> None:
    run: LoadTestRun = environment.slipway
    options = environment.parsed_options
    if isinstance(environment.runner, LocalRunner) and not (run.plan.users or options.user_classes):
        environment.user_classes = _served(run, environment.user_classes)
    if isinstance(environment.runner, WorkerRunner):
        # The master's order to start carries its plan and the common start time.
        run.plan = read_plan(options.plan)
        run.sources = len(run.plan.users or environment.user_classes) * run.plan.workers
    else:
        lead_s = _LEAD_S if isinstance(environment.runner, MasterRunner) else 0.0
        options.slipway_begun_s = now_s() + lead_s
    run.begin(options.slipway_begun_s)


def _served(run: LoadTestRun, users: list[Any]) -> list[Any]:
    """Return the users whose model the server serves, or all if it serves none or does not answer.

    This applies if nobody named users: Locust would share its number of users among all classes, and those of
    a model that is not served would end at once.
    """
    tls = Path(run.plan.tls) if run.plan.tls else None
    try:
        with Client(*run.address, tls=tls) as client:
            return [each for each in users if client.is_ready(each.use.model)] or users
    except SlipwayError as error:
        run.refuse(str(error))
        return users


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def _report(environment: Any, **_: Any) -> None:
    run: LoadTestRun = environment.slipway
    if isinstance(environment.runner, WorkerRunner):
        return
    plan = run.plan
    models = {each.use.model for each in environment.user_classes}
    summary = summarize(plan, models, run.begun_s, run.outcomes, list(run.refusals))
    queues = read_queues(plan.metrics).since(run.queues) if plan.metrics and run.queues else None
    if plan.json:
        report.write_json(Path(plan.json), plan, summary, queues)
    if plan.html:
        report.write_html(Path(plan.html), plan, summary, queues)
    for line in report.lines(summary, queues):
        print(printable(line))
    if plan.stages and (summary.broken or summary.refusals):
        environment.process_exit_code = 1
