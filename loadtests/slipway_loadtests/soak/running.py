"""A soak from beginning to end: traffic on a server that is watched, then what is wrong with it.

:func:`soak` starts a server of its own, which may leak or lose processes on purpose; :func:`soak_at` takes
one of this machine as it runs.
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
from slipway_loadtests.load.outcomes import now_s
from slipway_loadtests.soak import leak
from slipway_loadtests.soak.asks import Kind
from slipway_loadtests.soak.held import Held, Watched, held_by
from slipway_loadtests.soak.kills import Kills
from slipway_loadtests.soak.traffic import ALONE, Sent, first_answers, good_again, send
from slipway_loadtests.soak.verdict import (
    MEMORY,
    Allowed,
    Line,
    Run,
    lines_of,
    memory_broken,
    requests_broken,
    slopes_broken,
)
from slipway_serving.errors import NotReady
from slipway_serving.server import Server, ServerConfig
from slipway_serving.temporary_folders import TemporaryFolder

_BACK_S = 120.0
_POLL_S = 0.5
_RANDOM_OF_KILLS = 1 << 20

FLAT = Allowed(growth=10.0, slowing=50.0)


@dataclass(frozen=True)
class Options:
    """What is done.

    Attributes:
        minutes: length of the traffic; None where `requests` says it.
        requests: how many are sent in all; None where `minutes` says it.
        callers: that send at a time.
        kill_every: requests between two kills of a process; None kills none.
        leaks: whether a model that leaks is served beside the others, and must be caught.
        limit_s: longest wait for an answer, seconds; a longer one hangs.
        rest_s: longest wait for the memory to come back after `requests`, seconds.
        seed: of the choice of requests and kills.
        allowed: what passes for flat.
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
    """What came of a soak.

    Attributes:
        options: what was done.
        models: that were asked.
        run: what was seen.
        lines: what the server held, and p95 of each model, over the run.
        broken: a sentence for each thing that is wrong.
    """

    options: Options
    models: Sequence[str]
    run: Run
    lines: dict[str, Line]
    broken: Sequence[str]


def soak(repository: Path, kinds: Sequence[Kind], options: Options, log: Path | None = None) -> Result:
    """Soak a server of one's own.

    Args:
        repository: that it serves.
        kinds: of traffic; those whose model it serves are sent.
        options: what is done.
        log: where the server's log goes and stays.

    Raises:
        NotReady: it serves none of the models.
        SlipwayError: it does not start, or does not answer a good request before the traffic.
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
    """Soak a running server of this machine.

    Nobody hears what this server says of deaths, so the processes themselves tell of them.

    Args:
        url: its gRPC address.
        server_id: whose processes are watched.
        kinds: of traffic; those whose model it serves are sent.
        options: what is done, without leaks.

    Raises:
        NotReady: it serves none of the models.
        SlipwayError: it does not answer a good request before the traffic.
    """
    target = _Target(url, server_id, _kills(options), None)
    return _judged(options, *target.soaked(kinds, options))


def _kills(options: Options) -> Kills:
    return Kills(options.kill_every, np.random.default_rng((options.seed, _RANDOM_OF_KILLS)))


def _judged(options: Options, kinds: Sequence[Kind], run: Run) -> Result:
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
    """The server that is soaked.

    Attributes:
        url: its gRPC address.
        server_id: whose processes are watched.
        kills: of its processes.
        pid: Function that returns the process id of a `tritonserver` that tells `kills` of deaths by itself;
            None for another's server, whose processes are watched instead.
    """

    url: str
    server_id: str
    kills: Kills
    pid: Callable[[], int | None] | None

    def soaked(self, kinds: Sequence[Kind], options: Options) -> tuple[Sequence[Kind], Run]:
        """Send the traffic; return what was sent of, and what was seen."""
        with Client(self.url, retry=ALONE) as client:
            served = [kind for kind in kinds if client.is_ready(kind.model)]
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
        seen = Run(tuple(sent), watched.samples, kills, deaths, words, begun_s, ended_s, final)
        return served, replace(
            seen, samples=[*watched.samples, self._at_rest(seen, options)], unended=unended
        )

    def _watched(self) -> Watched:
        if self.pid is not None:
            return Watched(self.server_id)
        return Watched(self.server_id, self.kills.told, self.kills.lacks)

    def _keeper(self, sent: list[Sent], watched: Watched) -> Callable[[Sent], None]:
        """Return what takes the requests as they end, and kills a process where it is time to."""
        lock = threading.Lock()
        pid = self.pid or (lambda: watched.samples[-1].tritonserver if watched.samples else None)

        def keep(each: Sent) -> None:
            with lock:
                sent.append(each)
                count = len(sent)
            self.kills.after(count, pid)

        return keep

    def _at_rest(self, run: Run, options: Options) -> Held:
        """Return what the server holds once it has given back what the traffic needed, or does not."""
        found = held_by(self.server_id)

        def back() -> bool:
            nonlocal found
            found = held_by(self.server_id)
            return not memory_broken(replace(run, samples=[*run.samples, found]))

        _until(back, 0.0 if options.requests is None else options.rest_s)
        return found


def _wanted(options: Options) -> Callable[[], bool]:
    """Return what tells callers whether there is to be another request."""
    if options.requests is not None:
        numbers = itertools.count()  # Asked for by several threads: one call is one step of the interpreter.
        requests = options.requests
        return lambda: next(numbers) < requests
    until_s = now_s() + 60 * (options.minutes or 0)
    return lambda: now_s() < until_s


class _Callers:
    """Threads that send, begun at once; an error of one that is no answer is raised to who waits for them."""

    def __init__(self, sends: Sequence[Callable[[], None]]) -> None:
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._send, args=(each,), daemon=True) for each in sends]
        for thread in self._threads:
            thread.start()

    def unended(self, idle_s: Callable[[], float], options: Options) -> int:
        """Wait for all of them; return how many no longer send and do not come back.

        Args:
            idle_s: returns for how long none of them has had an answer, seconds.
            options: say when that is too long.
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
    """Wait until something holds, or the time is over."""
    until_s = time.monotonic() + limit_s
    while not condition() and time.monotonic() < until_s:
        time.sleep(_POLL_S)
