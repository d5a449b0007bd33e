"""Complete soak test: traffic on a watched server, then the verdict.

:func:`soak` starts a server of its own, which may leak or lose processes on purpose; :func:`soak_at` uses a
running server on this machine.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from slipway_client.client import Client
from slipway_client.served_model import ServedModel
from slipway_loadtests.load.outcomes import now_s
from slipway_loadtests.soak import leak
from slipway_loadtests.soak.kills import Kills
from slipway_loadtests.soak.resources import Held, Watched, held_by
from slipway_loadtests.soak.traffic import ALONE, Sent, first_answers, good_again, send
from slipway_loadtests.soak.verdict import (
    MEMORY,
    Allowed,
    Line,
    SoakRun,
    lines_of,
    memory_broken,
    requests_broken,
    slopes_broken,
)
from slipway_loadtests.soak.workload import Kind
from slipway_serving.protocol.errors import NotReady
from slipway_serving.system.temporary_folders import TemporaryFolder
from slipway_serving.triton.server import Server, ServerConfig

_BACK_S = 120.0
_POLL_S = 0.5
_RANDOM_OF_KILLS = 1 << 20

FLAT = Allowed(growth=10.0, slowing=50.0)


@dataclass(frozen=True)
class Options:
    """Options of a soak test.

    Attributes:
        minutes: Length of the traffic, in minutes; None if `requests` sets it.
        requests: Total number of requests; None if `minutes` sets the length.
        callers: Number of concurrent callers.
        kill_every: Number of requests between two kills of a process; None kills none.
        leaks: True if a leaking model is served beside the others and must be detected.
        limit_s: Longest wait for an answer, in seconds; a request that takes longer counts as hung.
        rest_s: Longest wait for the memory to recover after `requests`, in seconds.
        seed: Seed of the choice of requests and kills.
        allowed: Largest slopes that count as flat.
    """

    minutes: float | None = None
    requests: int | None = None
    callers: int = 8
    kill_every: int | None = None
    leaks: bool = False
    limit_s: float = 120.0
    rest_s: float = 60.0
    seed: int = 0
    allowed: Allowed = FLAT


@dataclass(frozen=True)
class Result:
    """Result of a soak test.

    Attributes:
        options: Options of the test.
        models: Names of the tested models.
        run: Record of the run.
        lines: Resources of the server, and p95 of each model, over the run.
        broken: Sentences about everything that is wrong.
    """

    options: Options
    models: Sequence[str]
    run: SoakRun
    lines: dict[str, Line]
    broken: Sequence[str]


def soak(repository: Path, kinds: Sequence[Kind], options: Options, log: Path | None = None) -> Result:
    """Run a soak test on a server of its own.

    Args:
        repository: Model repository that the server serves.
        kinds: Kinds of traffic; those whose model is served are sent.
        options: Options of the test.
        log: Path of the server's log, which is kept.

    Raises:
        NotReady: The server serves none of the models.
        SlipwayError: The server does not start, or does not answer a valid request before the traffic.
    """
    kills = _kills(options)
    with ExitStack() as opened:
        if options.leaks:
            folder = opened.enter_context(TemporaryFolder("slipway-soak-"))
            repository, kinds = leak.stage(repository, folder), (*kinds, leak.KIND)
        config = ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0, log_path=log)
        with Server(config, warn=kills.told) as server:
            target = _Target(server.grpc_url, server.server_id, kills, lambda: server.pid)
            served, run = target.soaked(kinds, options)
            stopping_s = time.monotonic()
        return _judged(options, served, replace(run, stop_s=time.monotonic() - stopping_s))


def soak_at(url: str, server_id: str, kinds: Sequence[Kind], options: Options) -> Result:
    """Run a soak test on a running server of this machine.

    The messages of this server about deaths do not reach us, so its processes are watched instead.

    Args:
        url: Address of the server's gRPC port.
        server_id: Id of the server whose processes are watched.
        kinds: Kinds of traffic; those whose model is served are sent.
        options: Options of the test, without leaks.

    Raises:
        NotReady: The server serves none of the models.
        SlipwayError: The server does not answer a valid request before the traffic.
    """
    target = _Target(url, server_id, _kills(options), None)
    return _judged(options, *target.soaked(kinds, options))


def _kills(options: Options) -> Kills:
    return Kills(options.kill_every, np.random.default_rng((options.seed, _RANDOM_OF_KILLS)))


def _judged(options: Options, kinds: Sequence[Kind], run: SoakRun) -> Result:
    lines = lines_of(run, options.allowed)
    by_lines = slopes_broken(lines) if options.requests is None else memory_broken(run)
    broken = [*requests_broken(run), *by_lines]
    if options.leaks:
        trend = lines[MEMORY].trend
        broken = [words for words in broken if not words.startswith(MEMORY)]
        if trend is None or trend.flat:
            got = "too few windows" if trend is None else "a flat line"
            broken.append(f"{MEMORY} must be seen to grow with a model that leaks, got {got}")
    return Result(options, [kind.model for kind in kinds], run, lines, broken)


@dataclass(frozen=True)
class _Target:
    """Server under test.

    Attributes:
        url: Address of its gRPC port.
        server_id: Id of the server whose processes are watched.
        kills: Kills of its processes.
        pid: Function that returns the process id of a `tritonserver` that tells `kills` of deaths by itself;
            None for another's server, whose processes are watched instead.
    """

    url: str
    server_id: str
    kills: Kills
    pid: Callable[[], int | None] | None

    def soaked(self, kinds: Sequence[Kind], options: Options) -> tuple[Sequence[Kind], SoakRun]:
        """Send the traffic; return the kinds that were sent and the record of the run."""
        with Client(self.url, retry=ALONE) as client:
            served = [_fitted(kind, client) for kind in kinds if client.is_ready(kind.model)]
            if not served:
                names = ", ".join(kind.model for kind in kinds)
                raise NotReady(f"soak: server must serve one of {names}, got none at {self.url}")
            firsts = first_answers(client, served, options.limit_s)
            sent: list[Sent] = []
            with self._watched() as watched:
                keep = self._keeper(sent, watched)
                begun_s, wanted = now_s(), _wanted(options)
                randoms = [np.random.default_rng((options.seed, number)) for number in range(options.callers)]
                callers = _Callers(
                    [partial(send, self.url, served, firsts, keep, random, wanted, options.limit_s)
                     for random in randoms]
                )  # fmt: skip
                unended = callers.unended(lambda: now_s() - (sent[-1].ended_s if sent else begun_s), options)
                ended_s = now_s()
                _until(lambda: self.kills.all_back, _BACK_S)
            final = good_again(client, served, firsts, options.limit_s)
        kills, deaths, words = self.kills.done, self.kills.deaths, self.kills.words
        seen = SoakRun(tuple(sent), watched.samples, kills, deaths, words, begun_s, ended_s, final)
        return served, replace(
            seen, samples=[*watched.samples, self._at_rest(seen, options)], unended=unended
        )

    def _watched(self) -> Watched:
        if self.pid is not None:
            return Watched(self.server_id)
        return Watched(self.server_id, self.kills.told, self.kills.lacks)

    def _keeper(self, sent: list[Sent], watched: Watched) -> Callable[[Sent], None]:
        """Return the callback that records each finished request and kills a process when a kill is due."""
        lock = threading.Lock()
        pid = self.pid or (lambda: watched.samples[-1].tritonserver if watched.samples else None)

        def keep(each: Sent) -> None:
            with lock:
                sent.append(each)
                count = len(sent)
            self.kills.after(count, pid)

        return keep

    def _at_rest(self, run: SoakRun, options: Options) -> Held:
        """Return the server's resources once its memory has recovered, or after the longest wait."""
        found = held_by(self.server_id)

        def back() -> bool:
            nonlocal found
            found = held_by(self.server_id)
            return not memory_broken(replace(run, samples=[*run.samples, found]))

        _until(back, 0.0 if options.requests is None else options.rest_s)
        return found


def _fitted(kind: Kind, client: Client) -> Kind:
    """Return a kind for the checkpoint that the server serves."""
    if kind.fit is None:
        return kind
    return kind.fit(ServedModel(kind.model, client.model_parameters(kind.model)))


def _wanted(options: Options) -> Callable[[], bool]:
    """Return the function that tells callers whether to send another request."""
    if options.requests is not None:
        numbers = itertools.count()  # Several threads share it: next() on it is atomic.
        requests = options.requests
        return lambda: next(numbers) < requests
    until_s = now_s() + 60 * (options.minutes or 0)
    return lambda: now_s() < until_s


class _Callers:
    """Threads that send requests; an exception in one of them is raised in the thread that waits for them."""

    def __init__(self, sends: Sequence[Callable[[], None]]) -> None:
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._send, args=(each,), daemon=True) for each in sends]
        for thread in self._threads:
            thread.start()

    def unended(self, idle_s: Callable[[], float], options: Options) -> int:
        """Wait for all callers; return how many hang and do not come back.

        Args:
            idle_s: Function that returns the time since the last answer to any caller, in seconds.
            options: Options with the time limit of an answer.
        """
        while any(thread.is_alive() for thread in self._threads) and idle_s() < 2 * options.limit_s:
            time.sleep(_POLL_S)
        if self._error is not None:
            raise self._error
        return sum(thread.is_alive() for thread in self._threads)

    def _send(self, send_all: Callable[[], None]) -> None:
        try:
            send_all()
        except BaseException as error:
            self._error = error
            raise


def _until(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait until a condition holds or the time limit is over."""
    until_s = time.monotonic() + limit_s
    while not condition() and time.monotonic() < until_s:
        time.sleep(_POLL_S)
