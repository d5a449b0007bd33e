"""Callers of a server, each with one request at a time: valid, invalid and abandoned requests.

:func:`first_answers` gets the expected answers of the valid requests beforehand, one at a time. Then
:func:`send` runs in as many threads as there are callers. A third of the requests is abandoned: by a cancel
message, by a time limit, or by closing the connection. A :class:`Sent` records the result of each.
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
from slipway_loadtests.soak.workload import Ask, Kind, answers, same, spoiled
from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    SlipwayError,
)
from slipway_serving.protocol.events import Event

GOOD, BAD, LEFT = "good", "bad", "left"
RIGHT, WRONG, REJECTED, FAILED, HUNG = "right", "wrong", "rejected", "failed", "hung"
SEEDS = 4
"""Number of different valid requests of each kind."""
ALONE = RetryPolicy(budget_s=0.0)
"""Retry policy without retries, so that every failure is seen."""
_BAD_SHARE = 1 / 6
_LEFT_SHARE = 1 / 3
_LATE_S = (0.001, 0.05)
_GONE_S = (0.0, 0.5)
# The error asks for this wait; without it, most of the traffic would be immediate refusals.
_AFTER_FAILURE_S = 0.5

Answers = Mapping[tuple[str, int], Sequence[Event]]
"""Expected answers to valid requests, by model and seed."""


@dataclass(frozen=True)
class Sent:
    """Result of one request, or of one session.

    Attributes:
        model: Name of the model.
        purpose: Purpose of the request: "good", "bad" or "left".
        begun_s: Time at which it was sent, in seconds since the epoch.
        ended_s: Time at which its caller was done with it, in seconds since the epoch.
        ended: Name of its end: "right" (answered as before, refused by its field, or abandoned), "wrong"
            (anything else that is no failure), "rejected" (the server is overloaded), "failed" or "hung" (no
            answer within the limit).
        code: Code of the error with which it failed.
        said: Text of the error, or a description of the wrong answer.
    """

    model: str
    purpose: str
    begun_s: float
    ended_s: float
    ended: str
    code: str = ""
    said: str = ""


def first_answers(client: Client, kinds: Sequence[Kind], limit_s: float) -> Answers:
    """Return the answer to every valid request, as the reference for the traffic.

    Raises:
        SlipwayError: The server does not answer one of them.
    """
    return {
        (kind.model, seed): tuple(answers(client, kind.make(seed), limit_s))
        for kind in kinds
        for seed in range(SEEDS)
    }


def good_again(client: Client, kinds: Sequence[Kind], firsts: Answers, limit_s: float) -> list[Sent]:
    """Send one valid request of each kind, and retry it until it is answered; return the results."""
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
    """Act as one caller for as long as requests are wanted.

    Args:
        url: Address of the gRPC port.
        kinds: Kinds of traffic to choose from.
        firsts: Expected answers to valid requests.
        keep: Callback that receives each result.
        random: Random generator for the choices.
        wanted: Function that tells whether to send another request.
        limit_s: Longest wait for an answer, in seconds.
    """
    shares = np.array([kind.share for kind in kinds], np.float64)
    with Client(url, retry=ALONE) as client:
        while wanted():
            kind = kinds[random.choice(len(kinds), p=shares / shares.sum())]
            seed = int(random.integers(SEEDS))
            match random.choice([GOOD, BAD, LEFT], p=[1 - _BAD_SHARE - _LEFT_SHARE, _BAD_SHARE, _LEFT_SHARE]):
                case "good":
                    sent = _answered(client, kind.make(seed), firsts[kind.model, seed], limit_s)
                case "bad" if kind.bad:
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
    """Abandon a stream after its first event, or a request with a single answer before it arrives."""
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
    """Close the connection during a request, at a random time."""
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
        except ValueError:  # gRPC raises it for a request on a closed connection
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
