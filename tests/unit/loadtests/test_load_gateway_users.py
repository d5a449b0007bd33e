"""Users of a gateway: what they send, how a visit ends, and which errors they report."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from slipway_loadtests.load.gateway import GatewayCaller, GatewayVisitor
from slipway_loadtests.load.outcomes import Outcome, now_s
from slipway_loadtests.load.plan import Plan
from slipway_loadtests.load.visits import USES, Use
from slipway_serving.protocol.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Overloaded,
    Unrecoverable,
)

VIDEO, PICTURE = (next(use for use in USES if use.model == name) for name in ("wan_t2v", "framepack_i2v"))
Answer = Callable[[httpx.Request], httpx.Response]


class Gateway:
    """Gateway in memory: each look at its one job shows the next of some states, and the last one stays."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self.states = [
            {"id": "video_1", "model": "wan_t2v", "seconds": "2", "step": 0, **each} for each in states
        ]
        self.sent: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        path = request.url.path
        if path.endswith("/content"):
            return httpx.Response(200, content=b"file")
        if path.endswith("/events"):
            events = [f"id: 1\ndata: {json.dumps(each)}\n\n: ping\n\n" for each in self.states]
            return httpx.Response(200, text="".join(events), headers={"content-type": "text/event-stream"})
        if request.method == "GET" and len(self.states) > 1:
            self.states.pop(0)
        return httpx.Response(200, json=self.states[0], headers={"openai-poll-after-ms": "0"})

    @property
    def calls(self) -> list[str]:
        return [f"{each.method} {each.url.path.removeprefix('/v1/videos')}" for each in self.sent]


def caller_of(answer: Answer) -> GatewayCaller:
    caller = GatewayCaller("http://gateway", "sk-secret", 5.0)
    caller._http = httpx.Client(
        base_url="http://gateway", headers=caller._http.headers, transport=httpx.MockTransport(answer)
    )
    return caller


def visit(gateway: Answer, plan: Plan | None = None, use: Use = VIDEO, seed: int = 0) -> Outcome:
    """Make one visit and return its outcome."""
    kept: list[Outcome] = []
    random = np.random.default_rng(seed)
    GatewayVisitor(caller_of(gateway), plan or Plan(), random, kept.append).visit(use, now_s())
    (outcome,) = kept
    return outcome


QUEUED, RUNNING = {"status": "queued"}, {"status": "in_progress", "step": 1}
DONE = {"status": "completed", "step": 4, "inference_time_s": 0.5}


@pytest.mark.parametrize("seed", range(4))
def test_video_is_answered_when_it_is_polled_or_followed_by_events(seed: int) -> None:
    gateway = Gateway(QUEUED, RUNNING, DONE)
    outcome = visit(gateway, Plan(fields={"wan_t2v": {"frames": 5}}), seed=seed)
    assert outcome.ended == "answered", outcome
    assert {"latency_s", "first_progress_s", "service_s", "queue_s"} <= outcome.measures.keys()
    assert outcome.measures["service_s"] == (0.5,)
    body = json.loads(gateway.sent[0].content)
    assert {"model", "prompt", "seed", "frames"} == body.keys()
    assert gateway.sent[0].headers["authorization"] == "Bearer sk-secret"
    assert gateway.calls[-1] == "GET /video_1/content"


def test_users_poll_and_follow_events_when_they_are_many() -> None:
    ways = set()
    for seed in range(8):
        gateway = Gateway(QUEUED, RUNNING, DONE)
        visit(gateway, seed=seed)
        ways.add("GET /video_1/events" in gateway.calls)
    assert ways == {True, False}


def test_job_is_deleted_when_its_user_leaves() -> None:
    gateway = Gateway(QUEUED, RUNNING)
    assert visit(gateway, Plan(cancel_share=1.0)).ended == "cancelled"
    assert gateway.calls[-1] == "DELETE /video_1"


def test_job_is_paused_once_and_resumed_when_its_user_pauses() -> None:
    gateway = Gateway(QUEUED, RUNNING, {"status": "paused", "step": 1}, RUNNING, DONE)
    assert visit(gateway, Plan(pause_share=1.0)).ended == "answered"
    assert gateway.calls.count("POST /video_1/pause") == 1
    assert gateway.calls.count("POST /video_1/resume") == 1


def test_picture_is_sent_as_a_file() -> None:
    gateway = Gateway(QUEUED, RUNNING, DONE)
    visit(gateway, use=PICTURE)
    assert gateway.sent[0].headers["content-type"].startswith("multipart/form-data")
    assert b'name="image"; filename=' in gateway.sent[0].content


@pytest.mark.parametrize(
    ("state", "ended", "said"),
    [
        ({"status": "failed", "error": {"message": "the server was lost"}}, "failed", "the server was lost"),
        ({"status": "cancelled"}, "cut off", "cancelled by somebody else"),
    ],
)
def test_visit_says_how_its_job_ended(state: dict[str, Any], ended: str, said: str) -> None:
    outcome = visit(Gateway(QUEUED, state))
    assert outcome.ended == ended
    assert said in outcome.said


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, Overloaded),
        (503, NotReady),
        (504, DeadlineExceeded),
        (401, InvalidRequest),
        (500, Unrecoverable),
    ],
)
def test_error_is_that_of_a_server_when_the_gateway_refuses(status: int, kind: type[Exception]) -> None:
    refusal = httpx.Response(status, json={"error": {"message": "no"}})
    with pytest.raises(kind, match=f"{status}: no"):
        caller_of(lambda _: refusal).create("wan_t2v", {"prompt": "x"})


def test_job_is_deleted_when_it_takes_too_long() -> None:
    gateway = Gateway(QUEUED)
    assert visit(gateway, Plan(timeout_s=1e-6), seed=1).ended == "expired"
    assert gateway.calls[-1] == "DELETE /video_1"


def test_field_is_refused_when_the_request_has_none_of_its_name() -> None:
    with pytest.raises(InvalidRequest, match="fields of wan_t2v must be of"):
        visit(Gateway(QUEUED), Plan(fields={"wan_t2v": {"frame": 5}}))
