"""What a load test does, as data: whose users, how many when, what they send and what they are promised.

`slipway load` builds a :class:`Plan` of its options; plain Locust reads one from YAML (`--plan FILE`). It
goes as JSON to the process that runs Locust, and from a master to its workers. Time is cut into stages, in
each of which the load stays the same: the shapes are four ways to cut it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from slipway_client.generation import Protocol
from slipway_loadtests.load.slo import Objective, objectives_of
from slipway_serving.durations import problem
from slipway_serving.errors import InvalidRequest, raise_all

Arrivals = Literal["closed", "constant", "poisson", "gamma"]
Shape = Literal["steady", "ramp", "spike", "soak"]
SOAK_S = 1800.0
_RAMP_STAGES = 8
_SPIKE_REST = 0.25


@dataclass(frozen=True)
class Stage:
    """A time in which the load stays the same.

    Attributes:
        seconds: how long it is.
        level: users where arrivals are closed, else requests or sessions per second.
    """

    seconds: float
    level: float


def stages_of(shape: Shape, level: float, seconds: float, *, whole: bool = False) -> tuple[Stage, ...]:
    """Cut a time into stages.

    Args:
        shape: steady and soak: one stage; ramp: eight equal stages from an eighth of the level to all of it;
            spike: a quarter of the level, all of it, a quarter again.
        level: the highest, as of :class:`Stage`.
        seconds: of all stages together.
        whole: levels are whole numbers from 1 on, as users are.
    """
    shares = {
        "ramp": tuple(step / _RAMP_STAGES for step in range(1, _RAMP_STAGES + 1)),
        "spike": (_SPIKE_REST, 1.0, _SPIKE_REST),
    }.get(shape, (1.0,))
    levels = (max(round(level * share), 1) if whole else level * share for share in shares)
    return tuple(Stage(seconds / len(shares), float(each)) for each in levels)


@dataclass(frozen=True)
class Plan:
    """A load test.

    Attributes:
        url: of the server, as every command takes it; empty where Locust's own `--host` says it.
        protocol: that the users speak; None as the url or its port says.
        tls: folder of certificates, as of :class:`slipway_client.Client`.
        users: names of Locust's users, by :data:`slipway_loadtests.load.visits.USES`; empty for those that
            Locust's own command line names.
        stages: the load over time; none leaves it to Locust's own `--users` and `--run-time`.
        arrivals: closed: each user sends again when answered, after its time to think. Otherwise requests
            come whatever the server does, at equal distances, as of many independent users, or in bursts.
        burst: of gamma arrivals: the squared coefficient of variation of the time between two, above 0; 1 is
            poisson.
        think_s: mean of a closed user's time to think, exponential, seconds.
        session_s: length of a session: of a world's play, or of a stream of sound or motion, seconds.
        paced: whether a session's turns come as fast as the world is shown, or the sound and the motion are
            heard and felt; otherwise each comes when the one before is answered.
        cancel_share: of videos, the share that is cancelled after a step, 0 to 1.
        timeout_s: time limit of each request, seconds.
        workers: processes that make the load together.
        seed: of moments, prompts, pictures, sounds and motions.
        fields: of requests, by model and name, where they differ from the payloads' own.
        slo: what is promised, by model.
        metrics: the server's metrics endpoint "HOST:PORT", for its queues; None asks nothing.
        html: where the report goes as a page.
        json: where it goes as data.
    """

    url: str = ""
    protocol: Protocol | None = None
    tls: str | None = None
    users: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    arrivals: Arrivals = "closed"
    burst: float = 4.0
    think_s: float = 0.0
    session_s: float = 10.0
    paced: bool = True
    cancel_share: float = 0.0
    timeout_s: float = 120.0
    workers: int = 1
    seed: int = 0
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    slo: Mapping[str, Objective] = field(default_factory=dict)
    metrics: str | None = None
    html: str | None = None
    json: str | None = None

    def __post_init__(self) -> None:
        """Check every number.

        Raises:
            InvalidRequest: naming each field that breaks its rule.
        """
        rules = {
            f"protocol must be one of {get_args(Protocol)}, got {self.protocol!r}": self.protocol
            in (None, *get_args(Protocol)),
            f"arrivals must be one of {get_args(Arrivals)}, got {self.arrivals!r}": self.arrivals
            in get_args(Arrivals),
            f"burst must be above 0, got {self.burst}": 0 < self.burst < math.inf,
            problem("think_s", self.think_s, zero=True): not problem("think_s", self.think_s, zero=True),
            problem("session_s", self.session_s): not problem("session_s", self.session_s),
            f"cancel_share must be 0 to 1, got {self.cancel_share}": 0 <= self.cancel_share <= 1,
            problem("timeout_s", self.timeout_s): not problem("timeout_s", self.timeout_s),
            f"workers must be 1 or more, got {self.workers}": self.workers >= 1,
            f"seed must be 0 or more, got {self.seed}": self.seed >= 0,
        } | {
            f"stages must last longer than 0 s at a level of 0 or more, got {stage}": 0
            < stage.seconds
            < math.inf
            and 0 <= stage.level < math.inf
            for stage in self.stages
        }
        raise_all("load", [text for text, held in rules.items() if not held])

    @property
    def seconds(self) -> float:
        """Length of all stages together."""
        return sum(stage.seconds for stage in self.stages)

    def stage_at(self, at_s: float) -> Stage | None:
        """Return the stage at a moment, seconds from the beginning; None after the last."""
        for stage in self.stages:
            if at_s < stage.seconds:
                return stage
            at_s -= stage.seconds
        return None

    def text(self) -> str:
        """Return the plan as JSON, which :func:`read_plan` reads."""
        return json.dumps(dataclasses.asdict(self))


def read_plan(text: str) -> Plan:
    """Read a plan: JSON as :meth:`Plan.text` writes it, or the path of a YAML file.

    Raises:
        InvalidRequest: no such file, no mapping, an unknown key, or a value that breaks its rule.
    """
    # JSON is nearly YAML: there 1e-06 is a text.
    given = json.loads(text) if text.startswith("{") else mapping_of(_text_of(Path(text)), text)
    known = {each.name for each in dataclasses.fields(Plan)}
    _only(known, given, "plan")
    if "stages" in given:
        given["stages"] = stages_from(given["stages"])
    if "users" in given:
        given["users"] = tuple(given["users"])
    if "slo" in given:
        given["slo"] = objectives_of(given["slo"])
    return Plan(**given)


def read_stages(path: Path) -> tuple[Stage, ...]:
    """Read a list of stages, `- {seconds: 30, level: 4}` each, from YAML.

    Raises:
        InvalidRequest: as :func:`read_plan`.
    """
    return stages_from(_parsed(_text_of(path)))


def stages_from(given: Any) -> tuple[Stage, ...]:
    """Make stages of what YAML or JSON says of them.

    Raises:
        InvalidRequest: it is no list of `seconds` and `level`, or empty.
    """
    keys = {"seconds", "level"}
    if not (
        isinstance(given, Sequence) and given and all(isinstance(x, dict) and set(x) == keys for x in given)
    ):
        raise InvalidRequest(
            f"load: stages must be a list of seconds and level each, got {given!r};"
            " try - {seconds: 30, level: 4}"
        )
    try:
        return tuple(Stage(float(each["seconds"]), float(each["level"])) for each in given)
    except (TypeError, ValueError):
        raise InvalidRequest(f"load: stages must have numbers as seconds and level, got {given!r}") from None


def read_slo(path: Path) -> dict[str, Objective]:
    """Read objectives by model from YAML.

    Raises:
        InvalidRequest: as :func:`read_plan`.
    """
    return objectives_of(mapping_of(_text_of(path), str(path)))


def mapping_of(text: str, where: str) -> dict[str, Any]:
    """Return YAML or JSON that must be a mapping.

    Raises:
        InvalidRequest: it is none.
    """
    given = _parsed(text)
    if not isinstance(given, dict):
        raise InvalidRequest(f"load: {where} must be a mapping, got {type(given).__name__}")
    return given


def _parsed(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidRequest(f"load: YAML must be readable, got {' '.join(str(error).split())}") from None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"load: {path} must be a readable text file, got {error}") from None


def _only(known: set[str], given: Mapping[str, Any], where: str) -> None:
    if unknown := sorted(set(map(str, given)) - known):
        raise InvalidRequest(f"load: {where} must have keys of {sorted(known)}, got {unknown}")
