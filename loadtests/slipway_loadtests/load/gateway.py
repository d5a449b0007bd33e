"""Users of a gateway: each one creates videos by HTTP, follows them, and downloads them.

A visit is one job from its creation to the last byte of its file. Half of the users poll as often as the
gateway says, and half follow the events. Some users delete the job after a step, and some pause and resume
it. A job's end and the status of an answer become the errors that callers of a server get, so the report
counts both alike.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from httpx_sse import EventSource, SSEError

from slipway_loadtests.load.outcomes import Outcome, RequestObserver, now_s
from slipway_loadtests.load.plan import Plan
from slipway_loadtests.load.visits import Use, stated_values
from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Overloaded,
    SlipwayError,
    Unrecoverable,
)

_POLL_HEADER, _USUAL_POLL_MS = "openai-poll-after-ms", 1000.0
_EVENTS_SHARE = 0.5
_COMPLETED, _FAILED, _CANCELLED, _PAUSED = "completed", "failed", "cancelled", "paused"
_ERRORS: Mapping[int, type[SlipwayError]] = {
    429: Overloaded,
    499: Cancelled,
    503: NotReady,
    504: DeadlineExceeded,
}

Job = dict[str, Any]


class GatewayCaller:
    """Connection of one user to a gateway.

    Args:
        url: Address of the gateway.
        key: Key of the user; None sends none.
        timeout_s: Longest wait for an answer, in seconds.
    """

    def __init__(self, url: str, key: str | None, timeout_s: float) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # A proxy from the environment is for external addresses.
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, trust_env=False)
        self._url = url

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def models(self) -> frozenset[str]:
        """Return the models for videos that a server is ready to work with.

        Raises:
            SlipwayError: The gateway does not answer, or refuses the key.
        """
        found = self._answer("GET", "/v1/models").json().get("data", [])
        return frozenset(each["id"] for each in found if each.get("ready") and each.get("video"))

    def create(self, model: str, values: Mapping[str, Any]) -> Job:
        """Create a job; a picture is sent as a file of a form."""
        files = {name: value for name, value in values.items() if isinstance(value, bytes)}
        fields = {"model": model, **{name: value for name, value in values.items() if name not in files}}
        if files:
            return dict(self._answer("POST", "/v1/videos", data=fields, files=files).json())
        return dict(self._answer("POST", "/v1/videos", json=fields).json())

    def follow(self, job: Job, *, by_events: bool) -> Iterator[Job]:
        """Yield the job whenever there is news, until it is deleted or the caller has seen enough."""
        yield job
        if by_events:
            yield from self._events(job["id"])
            return
        while True:
            answer = self._answer("GET", f"/v1/videos/{job['id']}")
            yield dict(answer.json())
            time.sleep(float(answer.headers.get(_POLL_HEADER, _USUAL_POLL_MS)) / 1000)

    def download(self, video_id: str) -> bytes:
        """Download the file of a finished video."""
        return self._answer("GET", f"/v1/videos/{video_id}/content").content

    def pause(self, video_id: str) -> None:
        """Ask that a job is paused; one that has ended meanwhile stays as it is."""
        self._answer("POST", f"/v1/videos/{video_id}/pause", accepted=(409,))

    def resume(self, video_id: str) -> None:
        """Resume a paused job."""
        self._answer("POST", f"/v1/videos/{video_id}/resume", json={})

    def delete(self, video_id: str) -> None:
        """Delete a job and its contents."""
        self._answer("DELETE", f"/v1/videos/{video_id}")

    def _events(self, video_id: str) -> Iterator[Job]:
        with self._named(), self._http.stream("GET", f"/v1/videos/{video_id}/events") as answer:
            self._check(answer)
            for event in EventSource(answer).iter_sse():
                if not event.data:
                    continue  # A comment that keeps the connection alive; httpx-sse yields those after an id.
                content = event.json()
                if content.get("deleted"):
                    return
                yield content

    def _answer(
        self, method: str, path: str, *, accepted: tuple[int, ...] = (), **arguments: Any
    ) -> httpx.Response:
        with self._named():
            answer = self._http.request(method, path, **arguments)
            if answer.status_code not in accepted:
                self._check(answer)
            return answer

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Turn errors of the connection into ours."""
        try:
            yield
        except httpx.TimeoutException as error:
            raise DeadlineExceeded(f"gateway: {self._url} must answer in time, got {error!r}") from None
        except (httpx.HTTPError, httpx.InvalidURL, SSEError, ValueError) as error:
            raise NotReady(f"gateway: {self._url} must answer, got {error!r}") from None

    @staticmethod
    def _check(answer: httpx.Response) -> None:
        if answer.is_success:
            return
        answer.read()
        try:
            message = answer.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = answer.text[:200]
        usual = InvalidRequest if answer.status_code < 500 else Unrecoverable
        raise _ERRORS.get(answer.status_code, usual)(f"{answer.status_code}: {message}")


@dataclass(frozen=True)
class GatewayVisitor:
    """One user of a gateway.

    Attributes:
        caller: Connection of the user.
        plan: Plan of the load test.
        random: Random generator for the data and the choices.
        keep: Callback that receives the outcome of each job.
    """

    caller: GatewayCaller
    plan: Plan
    random: np.random.Generator
    keep: Callable[[Outcome], None]

    def visit(self, use: Use, due_s: float) -> None:
        """Make one video through the gateway.

        Args:
            use: Use of a model that makes videos.
            due_s: Time at which the visit is due, in seconds since the epoch.

        Raises:
            InvalidRequest: The plan names a field that the model's request does not have.
        """
        assert use.video is not None
        plan, random = self.plan, self.random
        request, fields = use.video(plan, random)
        values = stated_values(plan, request, fields)
        leaves, pauses, by_events = (
            random.uniform() < share for share in (plan.cancel_share, plan.pause_share, _EVENTS_SHARE)
        )
        with RequestObserver(use.model, due_s, self.keep) as watch:
            job = self.caller.create(use.model, values)
            with self._not_left(job["id"]):
                done = self._follow(job, watch, leaves=leaves, pauses=pauses, by_events=by_events)
                if done is None:
                    watch.cancelled()
                    return
                self.caller.download(done["id"])
            watch.took(float(done["inference_time_s"]))
            watch.note("real_time_factor", float(done["seconds"]) / (now_s() - due_s))

    def _follow(
        self, job: Job, watch: RequestObserver, *, leaves: bool, pauses: bool, by_events: bool
    ) -> Job | None:
        """Follow a job to its end and return it; None for one that its user has deleted."""
        ends_s = now_s() + self.plan.timeout_s
        for news in self.caller.follow(job, by_events=by_events):
            if news["status"] == _COMPLETED:
                watch.once("first_progress_s")
                return news
            _check_end(news)
            if now_s() > ends_s:
                raise DeadlineExceeded(f"{job['model']}: the job must end in {self.plan.timeout_s:g} s")
            if news["status"] == _PAUSED:
                self.caller.resume(job["id"])
            elif news["step"] > 0:
                watch.once("first_progress_s")
                if leaves:
                    self.caller.delete(job["id"])
                    return None
                if pauses:
                    pauses = False
                    self.caller.pause(job["id"])
        raise Cancelled(f"{job['model']}: the job was deleted by somebody else")

    @contextlib.contextmanager
    def _not_left(self, video_id: str) -> Iterator[None]:
        """Delete the job of a user who gives up."""
        try:
            yield
        except DeadlineExceeded:
            with contextlib.suppress(SlipwayError):
                self.caller.delete(video_id)
            raise


def _check_end(job: Job) -> None:
    if job["status"] == _FAILED:
        raise Unrecoverable(f"{job['model']}: {job['error']['message']}")
    if job["status"] == _CANCELLED:
        raise Cancelled(f"{job['model']}: the job was cancelled by somebody else")
