"""Verdict of a soak test, from its requests and samples.

A run of minutes is judged by lines: the server's resources, and each model's p95, in equal windows of the
run, must be flat. A run of requests, in which processes may be killed, is judged by its failures, and by the
memory at its end compared with that after its first tenth.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipway_loadtests.soak.kills import Kill, unexplained
from slipway_loadtests.soak.resources import Held
from slipway_loadtests.soak.traffic import FAILED, GOOD, HUNG, REJECTED, RIGHT, WRONG, Sent
from slipway_loadtests.soak.trends import Trend, trend_of

WINDOWS = 60
MEMORY = "memory, MiB"
SHARED_MEMORY = "shared memory, MiB"
DESCRIPTORS = "descriptors"
MEMORY_GROWTH = 1.05
"""Largest ratio of the memory at the end of a run of requests to that after its first tenth."""
MOST_REJECTED = 0.01
"""Largest share of rejected requests; a session whose connection was closed occupies its place until it has
been idle."""
MOST_DEATHS = 0.01
"""Largest number of deaths of `tritonserver` per request; Triton 2.51 cannot avoid them if calls are cut."""
_FEWEST_ANSWERS = 5
_MIB = 1 << 20
_SHOWN = 3


@dataclass(frozen=True)
class Line:
    """One quantity over the run.

    Attributes:
        times_s: Middles of the windows, in seconds from the beginning.
        values: Median of the server's resource, or p95 of latencies, in each window.
        trend: Trend of the line; None if there were too few windows, or if it is not judged.
    """

    times_s: tuple[float, ...]
    values: tuple[float, ...]
    trend: Trend | None = None


@dataclass(frozen=True)
class SoakRun:
    """Record of a soak run.

    Attributes:
        sent: Every request, in the order of their ends.
        samples: Resources of the server over the whole run; the last sample is at rest.
        kills: Kills of its processes.
        deaths: Deaths of `tritonserver` itself.
        words: Messages of the server about deaths and restarts.
        begun_s: Time at which the traffic began, in seconds since the epoch.
        ended_s: Time at which its last request ended, in seconds since the epoch.
        final: Valid requests of each kind after the traffic.
        unended: Number of callers that did not come back.
        stop_s: Time that the server's stop took, in seconds; None for a server that we did not start.
    """

    sent: Sequence[Sent]
    samples: Sequence[Held]
    kills: Sequence[Kill]
    deaths: Sequence[Kill]
    words: Sequence[str]
    begun_s: float
    ended_s: float
    final: Sequence[Sent]
    unended: int = 0
    stop_s: float | None = None

    @property
    def interruptions(self) -> list[Kill]:
        """Kills and deaths that can explain failures."""
        return [*self.kills, *self.deaths]


@dataclass(frozen=True)
class Allowed:
    """Largest slopes that count as flat, in percent per hour.

    Attributes:
        growth: Largest slope of the server's resources.
        slowing: Largest slope of p95.
    """

    growth: float
    slowing: float


def lines_of(run: SoakRun, allowed: Allowed) -> dict[str, Line]:
    """Return the server's resources over a run, and each model's p95, by name."""
    held = [each for each in run.samples if run.begun_s <= each.at_s <= run.ended_s]
    times_s = [each.at_s for each in held]
    values = {
        MEMORY: [each.memory_bytes / _MIB for each in held],
        SHARED_MEMORY: [each.shared_bytes / _MIB for each in held],
        DESCRIPTORS: [float(each.descriptors) for each in held],
    }
    lines = {name: _line(run, times_s, each, allowed.growth) for name, each in values.items()}
    good = [each for each in run.sent if each.purpose == GOOD and each.ended == RIGHT]
    for model in sorted({each.model for each in good}):
        own = [each for each in good if each.model == model]
        took_s = [each.ended_s - each.begun_s for each in own]
        ended_s = [each.ended_s for each in own]
        lines[p95_of(model)] = _line(run, ended_s, took_s, allowed.slowing, percent=95)
    return lines


def p95_of(model: str) -> str:
    """Return the name of the line for a model's p95."""
    return f"p95 of {model}, s"


def _line(
    run: SoakRun,
    times_s: Sequence[float],
    values: Sequence[float],
    allowed: float,
    percent: int | None = None,
) -> Line:
    """Return medians of windows, or percentiles of those with enough values."""
    window_s = (run.ended_s - run.begun_s) / WINDOWS or 1.0
    windows: dict[int, list[float]] = {}
    for time_s, value in zip(times_s, values, strict=True):
        windows.setdefault(min(int((time_s - run.begun_s) / window_s), WINDOWS - 1), []).append(value)
    enough = sorted(
        number for number, own in windows.items() if percent is None or len(own) >= _FEWEST_ANSWERS
    )
    middles = tuple((number + 0.5) * window_s for number in enough)
    found = tuple(
        statistics.median(windows[number])
        if percent is None
        else float(np.percentile(windows[number], percent))
        for number in enough
    )
    return Line(middles, found, trend_of(middles, found, allowed))


def slopes_broken(lines: Mapping[str, Line]) -> list[str]:
    """Return a sentence for each line that is not flat, or that is a resource's and too short to judge."""
    broken = []
    for name, line in lines.items():
        if line.trend is None and name in (MEMORY, SHARED_MEMORY, DESCRIPTORS):
            broken.append(f"{name} must be seen in more windows, got {len(line.values)}; try more minutes")
        elif line.trend is not None and not line.trend.flat:
            broken.append(
                f"{name} must grow by at most {line.trend.allowed_percent_per_hour:g} % per hour, got"
                f" {line.trend.percent_per_hour:.1f}"
            )
    return broken


def memory_ratio(run: SoakRun) -> float | None:
    """Return memory at the end ÷ memory after the first tenth of the requests, or None without samples.

    The divisor is the median over the second tenth, because a process that was just killed would make a
    single sample small.
    """
    if not run.sent or not run.samples:
        return None
    since_s, until_s = (run.sent[len(run.sent) * part // 10].ended_s for part in (1, 2))
    later = [each for each in run.samples if each.at_s >= since_s] or [run.samples[-1]]
    then = [each.memory_bytes for each in later if each.at_s <= until_s] or [later[0].memory_bytes]
    median = statistics.median(then)
    return run.samples[-1].memory_bytes / median if median else None


def shared_per_kill(run: SoakRun) -> float | None:
    """Return the growth of shared memory per interruption, in bytes, or None without interruptions.

    The function compares shared memory at rest with that before the first interruption. A death of
    `tritonserver` frees what earlier kills left, so the figure counts the interruptions since the last death
    only.
    """
    since_s = max((death.at_s for death in run.deaths), default=run.begun_s)
    kills = [kill for kill in run.kills if kill.at_s > since_s]
    back_s = max((death.back_s or since_s for death in run.deaths), default=run.begun_s)
    if not kills or not (samples := [each for each in run.samples if each.at_s >= back_s]):
        return None
    before = [each.shared_bytes for each in samples if each.at_s < kills[0].at_s] or [samples[0].shared_bytes]
    return (run.samples[-1].shared_bytes - before[-1]) / len(kills)


def memory_broken(run: SoakRun) -> list[str]:
    """Return a sentence if the memory did not recover."""
    ratio = memory_ratio(run)
    if ratio is not None and ratio <= MEMORY_GROWTH:
        return []
    got = "no sample" if ratio is None else f"{ratio:.3f}"
    return [f"memory at the end must be at most {MEMORY_GROWTH} times that after the first tenth, got {got}"]


def requests_broken(run: SoakRun) -> list[str]:
    """Return a sentence for each rule that requests or processes broke."""
    sent = [*run.sent, *run.final]
    rules = {
        "no answer may be wrong": [each for each in sent if each.ended == WRONG],
        "no request may hang": [each for each in sent if each.ended == HUNG],
        "every failure must be explained by a kill": unexplained(run.sent, run.interruptions),
        "a good request must pass in the end": [
            each for each in run.final if each.ended in (FAILED, REJECTED)
        ],
    }
    broken = [f"{rule}, got {_examples(found)}" for rule, found in rules.items() if found]
    rejected = [each for each in run.sent if each.ended == REJECTED]
    if len(rejected) > MOST_REJECTED * len(run.sent):
        broken.append(f"at most {MOST_REJECTED:.0%} may be rejected, got {_examples(rejected)}")
    if run.unended:
        broken.append(f"every caller must come back, got {run.unended} that did not")
    if gone := [kill.model for kill in run.kills if kill.back_s is None]:
        broken.append(f"every model must serve again whose process was killed, got {', '.join(gone)}")
    if len(run.deaths) > MOST_DEATHS * len(run.sent):
        broken.append(f"tritonserver may die for {MOST_DEATHS:.0%} of the requests, got {len(run.deaths)}")
    killed = Counter(f"model died: model {kill.model}" for kill in run.kills)
    lost = [words for words in run.words if words.startswith("model died")]
    if by_itself := Counter(words.partition(",")[0] for words in lost) - killed:
        broken.append(f"no model's process must die by itself, got {', '.join(by_itself.elements())}")
    return broken


def counts(run: SoakRun) -> dict[str, int]:
    """Return the number of requests by purpose and end."""
    found = Counter(f"{each.purpose}, {each.ended}" for each in run.sent)
    return dict(sorted(found.items()))


def _examples(sent: Sequence[Sent]) -> str:
    texts = Counter(f"{each.model} ({each.purpose}): {each.said}" for each in sent)
    shown = "; ".join(f"{count} times {text}" for text, count in texts.most_common(_SHOWN))
    return f"{len(sent)}: {shown}"
