"""Plan of a load test: its users, the load over time, the requests and the objectives.

`slipway load` builds a :class:`Plan` from its options; plain Locust reads one from YAML (`--plan FILE`). The
plan travels as JSON to the process that runs Locust, and from a master to its workers. Time is divided into
stages of constant load; the four shapes are four ways to divide it.
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
from slipway_serving.protocol.durations import problem
from slipway_serving.protocol.errors import InvalidRequest, raise_all

Arrivals = Literal["closed", "constant", "poisson", "gamma"]
Shape = Literal["steady", "ramp", "spike", "soak"]
SOAK_S = 1800.0
_RAMP_STAGES = 8
_SPIKE_REST = 0.25


@dataclass(frozen=True)
class Stage:
    """Period of constant load.

    Attributes:
        seconds: Length of the stage, in seconds.
        level: Number of users if arrivals are closed, else requests or sessions per second.
    """

    seconds: float
    level: float


def stages_of(shape: Shape, level: float, seconds: float, *, whole: bool = False) -> tuple[Stage, ...]:
    """Divide a time into stages.

    Args:
        shape: Shape of the load. steady and soak: one stage; ramp: eight equal stages from an eighth of the
            level to all of it; spike: a quarter of the level, all of it, a quarter again.
        level: Highest level, in the unit of :class:`Stage`.
        seconds: Length of all stages together, in seconds.
        whole: True if levels are whole numbers of 1 or more, as numbers of users are.
    """
    shares = {
        "ramp": tuple(step / _RAMP_STAGES for step in range(1, _RAMP_STAGES + 1)),
        "spike": (_SPIKE_REST, 1.0, _SPIKE_REST),
    }.get(shape, (1.0,))
    levels = (max(round(level * share), 1) if whole else level * share for share in shares)
    return tuple(Stage(seconds / len(shares), float(each)) for each in levels)


@dataclass(frozen=True)
class Plan:
    """Configuration of a load test.

    Attributes:
        url: URL of the server, as every command accepts it, or of the gateway; empty if Locust's own `--host`
            gives it.
        protocol: Protocol that the users speak; None to take it from the url or its port.
        tls: Folder of certificates, as in :class:`slipway_client.Client`.
        users: Names of Locust's users, from :func:`slipway_loadtests.load.uses.all_uses`; empty for the users
            that Locust's own command line names.
        stages: Load over time; empty to leave it to Locust's own `--users` and `--run-time`.
        arrivals: Kind of arrivals. closed: each user waits for the answer and thinks before the next request.
            Otherwise requests arrive whatever the server does: constant at equal gaps, poisson as from many
            independent users, gamma in bursts.
        burst: Squared coefficient of variation of the gaps of gamma arrivals, above 0; 1 is poisson.
        think_s: Mean of a closed user's think time, exponentially distributed, in seconds.
        session_s: Length of a session (a world's play, or a stream of sound or motion), in seconds.
        paced: True if a session's turns are due as fast as the world is shown, or the sound or motion is
            recorded; otherwise each turn is due when the one before is answered.
        cancel_share: Share of videos that the user cancels after a step, 0 to 1.
        pause_share: Share of a gateway's videos that the user pauses after a step and resumes, 0 to 1.
        timeout_s: Time limit of each request, in seconds.
        workers: Number of processes that generate the load together.
        seed: Seed of arrival times, prompts, pictures, sounds and motions.
        fields: Values of request fields by model and name, in place of the payloads' own.
        slo: Objectives by model.
        metrics: The server's metrics endpoint "HOST:PORT", for its queue figures; None reads no metrics.
        html: Path of the report as a page.
        json: Path of the report as data.
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
    pause_share: float = 0.0
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
            InvalidRequest: At least one field breaks its rule; the message names each.
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
            f"pause_share must be 0 to 1, got {self.pause_share}": 0 <= self.pause_share <= 1,
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
        """Length of all stages together, in seconds."""
        return sum(stage.seconds for stage in self.stages)

    def stage_at(self, at_s: float) -> Stage | None:
        """Return the stage at a time in seconds from the beginning, or None after the last."""
        for stage in self.stages:
            if at_s < stage.seconds:
                return stage
            at_s -= stage.seconds
        return None

    def text(self) -> str:
        """Return the plan as JSON, which :func:`read_plan` reads."""
        return json.dumps(dataclasses.asdict(self))


def read_plan(text: str) -> Plan:
    """Read a plan from JSON, as :meth:`Plan.text` writes it, or from the path of a YAML file.

    Raises:
        InvalidRequest: The file does not exist or is no mapping, a key is unknown, or a value breaks its
            rule.
    """
    # JSON is not quite YAML: YAML reads 1e-06 as a text.
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
        InvalidRequest: The file cannot be read, or is no list of stages.
    """
    return stages_from(_parsed(_text_of(path)))


def stages_from(given: Any) -> tuple[Stage, ...]:
    """Convert parsed YAML or JSON to stages.

    Raises:
        InvalidRequest: The data is empty or is no list of `seconds` and `level`.
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
        InvalidRequest: The file cannot be read, a key is unknown, or a value breaks its rule.
    """
    return objectives_of(mapping_of(_text_of(path), str(path)))


def mapping_of(text: str, where: str) -> dict[str, Any]:
    """Parse YAML or JSON that must be a mapping.

    Raises:
        InvalidRequest: The text cannot be parsed or is no mapping.
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
