"""Callers of a server, each one request after the other: good ones, bad ones, and ones that they leave.

The answers that good requests must have are asked for beforehand, one at a time (:func:`first_answers`). Then
:func:`send` runs in as many threads as there are callers. A third of the requests is left: by a message, for
being too late, or with the connection. What became of each is a :class:`Sent`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from slipway_client.client import Client
from slipway_client.retry import RetryPolicy
from slipway_loadtests.load.outcomes import now_s
from slipway_loadtests.soak.asks import Ask, Kind, answers, same, spoiled
from slipway_serving.errors import Cancelled, DeadlineExceeded, InvalidRequest, Overloaded, SlipwayError
from slipway_serving.events import Event

GOOD, BAD, LEFT = "good", "bad", "left"
RIGHT, WRONG, REJECTED, FAILED, HUNG = "right", "wrong", "rejected", "failed", "hung"
SEEDS = 4
"""Good requests of each kind that differ."""
ALONE = RetryPolicy(budget_s=0.0)
"""Nothing is tried again: a failure is to be seen."""
_BAD_SHARE = 1 / 6
_LEFT_SHARE = 1 / 3
_LATE_S = (0.001, 0.05)
_GONE_S = (0.0, 0.5)
# As the error asks for; without it, what is refused at once would be most of the requests.
_AFTER_FAILURE_S = 0.5

Answers = Mapping[tuple[str, int], Sequence[Event]]
"""What good requests must be answered with, by model and seed."""


@dataclass(frozen=True)
class Sent:
    """What became of one request, or one session.

    Attributes:
        model: that was asked.
        purpose: "good", "bad" or "left".
        begun_s: when it was sent, seconds since the epoch.
        ended_s: when its caller had done with it.
        ended: "right" (answered as before, refused by its field, or left), "wrong" (anything else that is no
            failure), "rejected" (the server has enough), "failed" or "hung" (no answer within the limit).
        code: of the error that it failed with.
        said: the error's text, or what was wrong.
    """

    model: str
    purpose: str
    begun_s: float
    ended_s: float
    ended: str
    code: str = ""
    said: str = ""


def first_answers(client: Client, kinds: Sequence[Kind], limit_s: float) -> Answers:
    """Ask for what every good request must be answered with.

    Raises:
        SlipwayError: the server does not answer one of them.
    """
    return {
        (kind.model, seed): tuple(answers(client, kind.make(seed), limit_s))
        for kind in kinds
        for seed in range(SEEDS)
    }


def good_again(client: Client, kinds: Sequence[Kind], firsts: Answers, limit_s: float) -> list[Sent]:
    """Send one good request of each kind, again while it is not answered; return what became of them."""
    until_s, found = time.monotonic() + limit_s, []
    for kind in kinds:
        while True:
            sent = _answered(client, kind.make(0), firsts[kind.model, 0], limit_s)
            if sent.ended not in (FAILED, REJECTED) or time.monotonic() > until_s:
                break
            time.sleep(_AFTER_FAILURE_S)
        found.append(sent)
    return found


def send(
    url: str,
    kinds: Sequence[Kind],
    firsts: Answers,
    keep: Callable[[Sent], None],
    random: np.random.Generator,
    wanted: Callable[[], bool],
    limit_s: float,
) -> None:
    """Be one caller as long as requests are wanted.

    Args:
        url: gRPC address.
        kinds: what may be asked.
        firsts: what good requests must be answered with.
        keep: takes what became of each.
        random: of the choice.
        wanted: tells whether there is to be another one.
        limit_s: longest wait for an answer, seconds.
    """
    shares = np.array([kind.share for kind in kinds], np.float64)
    with Client(url, retry=ALONE) as client:
        while wanted():
            kind = kinds[random.choice(len(kinds), p=shares / shares.sum())]
            seed = int(random.integers(SEEDS))
            match random.choice([GOOD, BAD, LEFT], p=[1 - _BAD_SHARE - _LEFT_SHARE, _BAD_SHARE, _LEFT_SHARE]):
                case "good":
                    sent = _answered(client, kind.make(seed), firsts[kind.model, seed], limit_s)
                case "bad":
                    field = str(random.choice(sorted(kind.bad)))
                    sent = _refused(client, spoiled(kind.make(seed), field, kind.bad[field]), limit_s)
                case _ if random.uniform() < 0.5:
                    sent = _given_up(client, kind.make(seed), random.uniform(*_LATE_S), limit_s)
                case _:
                    sent = _disconnected(url, kind.make(seed), random.uniform(*_GONE_S), limit_s)
            keep(sent)
            if sent.ended in (FAILED, REJECTED):
                time.sleep(_AFTER_FAILURE_S)


def _answered(client: Client, ask: Ask, first: Sequence[Event], limit_s: float) -> Sent:
    begun_s = now_s()
    try:
        right = same(first, tuple(answers(client, ask, limit_s)))
    except SlipwayError as error:
        return _failed(ask, GOOD, begun_s, error)
    return _sent(ask, GOOD, begun_s, RIGHT if right else WRONG, "" if right else "another answer than before")


def _refused(client: Client, ask: Ask, limit_s: float) -> Sent:
    begun_s = now_s()
    try:
        for _ in answers(client, ask, limit_s):
            pass
    except InvalidRequest as error:
        named = f"{ask.refused_for} must be" in str(error)
        return _sent(ask, BAD, begun_s, RIGHT if named else WRONG, "" if named else str(error))
    except SlipwayError as error:
        return _failed(ask, BAD, begun_s, error)
    return _sent(ask, BAD, begun_s, WRONG, f"answered, though {ask.refused_for} breaks its rule")


def _given_up(client: Client, ask: Ask, late_s: float, limit_s: float) -> Sent:
    """Leave a stream after its first event, and what answers once before it is there."""
    begun_s = now_s()
    try:
        with closing(answers(client, ask, limit_s if ask.opening.streams else late_s)) as events:
            next(events, None)
    except (Cancelled, DeadlineExceeded) as error:
        if ask.opening.streams:
            return _failed(ask, LEFT, begun_s, error)
    except SlipwayError as error:
        return _failed(ask, LEFT, begun_s, error)
    return _sent(ask, LEFT, begun_s, RIGHT)


def _disconnected(url: str, ask: Ask, gone_s: float, limit_s: float) -> Sent:
    """Close the connection under a request, at any point of it."""
    begun_s, gone = now_s(), threading.Event()
    with Client(url, retry=ALONE) as own:

        def go() -> None:
            gone.set()
            own.close()

        timer = threading.Timer(gone_s, go)
        timer.start()
        try:
            for _ in answers(own, ask, limit_s):
                pass
        except SlipwayError as error:
            if not gone.is_set() or isinstance(error, DeadlineExceeded):
                return _failed(ask, LEFT, begun_s, error)
        except ValueError:  # gRPC's, of a request on a connection that is closed
            if not gone.is_set():
                raise
        finally:
            timer.cancel()
            timer.join()
    return _sent(ask, LEFT, begun_s, RIGHT)


def _failed(ask: Ask, purpose: str, begun_s: float, error: SlipwayError) -> Sent:
    ends = {DeadlineExceeded: HUNG, Overloaded: REJECTED}
    ended = next((end for cls, end in ends.items() if isinstance(error, cls)), FAILED)
    return Sent(ask.opening.model, purpose, begun_s, now_s(), ended, error.code, str(error))


def _sent(ask: Ask, purpose: str, begun_s: float, ended: str, said: str = "") -> Sent:
    return Sent(ask.opening.model, purpose, begun_s, now_s(), ended, said=said)
