"""Locust's users, one class for each model.

With closed arrivals, a user visits, thinks, and visits again; a rejected user waits a moment first. With open
arrivals, a user is a source: it starts visitors at their arrival times, each in a greenlet and with its own
connection, and waits for the last of them. Models that make videos have a second class, whose users call a
gateway.
"""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gevent
import numpy as np
from gevent.pool import Pool
from locust import User, task
from locust.exception import StopUser

from slipway_client.client import Client
from slipway_client.retry import RetryPolicy
from slipway_loadtests.load.arrivals import moments_s
from slipway_loadtests.load.gateway import GatewayCaller, GatewayVisitor
from slipway_loadtests.load.outcomes import REJECTED, UNANSWERED, Outcome, now_s
from slipway_loadtests.load.plan import Plan
from slipway_loadtests.load.running import LoadTestRun
from slipway_loadtests.load.uses import all_uses
from slipway_loadtests.load.visits import Use, Visitor, served_model
from slipway_serving.protocol.errors import NotReady, SlipwayError

_NUMBERS = itertools.count()
_COMES_AGAIN_S = 1.0
"""Mean wait of a closed user after a rejection, in seconds, like that of the client's own retries."""


class ModelUser(User):  # type: ignore[misc]
    """User of one model.

    Attributes:
        use: Use of the model.
        via_gateway: True for users of a gateway.
    """

    abstract = True
    use: ClassVar[Use]
    via_gateway: ClassVar[bool] = False

    def on_start(self) -> None:
        """Connect; if the server does not serve the model, let the first task stop the user."""
        self.run_: LoadTestRun = self.environment.slipway
        self.plan: Plan = self.run_.plan
        worker = getattr(self.environment.runner, "worker_index", 0)
        self.random = np.random.default_rng([self.plan.seed, max(worker, 0), next(_NUMBERS)])
        self.rejected = self.refused = False
        self.free: list[Any] = []
        try:
            self.free.append(self._connected())
            self._prepare(self.free[0])
        except SlipwayError as error:
            self.run_.refuse(f"{self.use.model}: {error}")
            # An exception that leaves this method would make Locust print a traceback.
            self.refused = True
            return
        if self.plan.arrivals == "closed" and self.plan.paced and self.use.turn_s is not None:
            # The users of a stage start together, so spread their first requests over a turn.
            gevent.sleep(self.random.uniform(0, self.use.turn_s))

    def on_stop(self) -> None:
        """Close the connections."""
        for client in self.free:
            client.close()

    def wait_time(self) -> float:
        """Return the think time, or the wait after a rejection, before the next visit, in seconds."""
        mean_s = max(self.plan.think_s, _COMES_AGAIN_S if self.rejected else 0.0)
        return float(self.random.exponential(mean_s)) if mean_s else 0.0

    @task  # type: ignore[untyped-decorator]
    def come(self) -> None:
        """Visit once; with open arrivals, start every visitor of this source."""
        if self.refused:
            raise StopUser
        if self.plan.arrivals == "closed":
            self._visit(now_s(), self.random)
            return
        visitors = Pool()
        for moment_s in moments_s(self.plan, 1 / self.run_.sources, self.random):
            due_s = self.run_.begun_s + moment_s
            gevent.sleep(max(due_s - now_s(), 0.0))
            visitors.spawn(self._visit, due_s, np.random.default_rng(self.random.integers(2**63)))
        visitors.join(self.plan.timeout_s)
        for left in list(visitors):
            self.run_.keep(Outcome(self.use.model, left.args[0], now_s(), UNANSWERED, {}))
        visitors.kill()
        raise StopUser

    def _visit(self, due_s: float, random: np.random.Generator) -> None:
        client = self.free.pop() if self.free else self._connected()
        try:
            self._visit_by(client, due_s, random)
        except SlipwayError as error:
            self.run_.refuse(str(error))
            raise StopUser from None
        finally:
            self.free.append(client)

    def _keep(self, outcome: Outcome) -> None:
        self.rejected = outcome.ended == REJECTED
        self.run_.keep(outcome)

    def _prepare(self, client: Any) -> None:
        """Ask what the visits need to know of the model."""
        self.served = served_model(client, self.use.model)

    def _visit_by(self, client: Any, due_s: float, random: np.random.Generator) -> None:
        visitor = Visitor(client, self.plan, random, self._keep, self.run_.until_s, self.served)
        self.use.visit(visitor, due_s)

    def _connected(self) -> Any:
        tls = Path(self.plan.tls) if self.plan.tls else None
        return Client(*self.run_.address, retry=RetryPolicy(budget_s=0.0), tls=tls)


class GatewayUser(ModelUser):
    """User of one model through a gateway."""

    abstract = True
    via_gateway = True

    def _prepare(self, client: Any) -> None:
        if self.use.model not in client.models():
            raise NotReady("the gateway must have a server that is ready with the model, got none")

    def _visit_by(self, client: Any, due_s: float, random: np.random.Generator) -> None:
        GatewayVisitor(client, self.plan, random, self._keep).visit(self.use, due_s)

    def _connected(self) -> Any:
        return GatewayCaller(self.run_.address.url, self.run_.key, self.plan.timeout_s)


def _text_of(use: Use) -> str:
    """Return what a visit is, of which Locust shows the first line."""
    visit = use.visit.func if isinstance(use.visit, partial) else use.visit
    return (visit.__doc__ or "").partition("\n")[0]


def _user_of(use: Use) -> type[ModelUser]:
    return type(use.user, (ModelUser,), {"use": use, "__doc__": _text_of(use), "__module__": __name__})


def _gateway_user_of(use: Use) -> type[GatewayUser]:
    text = f"{_text_of(use)} It goes through a gateway."
    return type(use.gateway_user, (GatewayUser,), {"use": use, "__doc__": text, "__module__": __name__})


_USES = all_uses()
USERS: dict[str, Any] = {use.user: _user_of(use) for use in _USES} | {
    use.gateway_user: _gateway_user_of(use) for use in _USES if use.video is not None
}
"""Every user class by name."""
