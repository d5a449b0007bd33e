"""Sample requests keep the rules of any request class, or the refusal says what the package must provide."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Pillow

from slipway_client.served_model import ServedModel
from slipway_export.families import families
from slipway_loadtests.samples import sample, sampled_values, wrong_values
from slipway_loadtests.soak.sampled import sampled_kind
from slipway_serving.protocol import images
from slipway_serving.protocol.diffusion.fields import Seed, Steps, TimeoutS
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.fields import Array, Image, fields_of
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.rules import boolean, multiple, one_of, text, within

REQUESTS = [request for family in families() for request in family.requests]
EVERY_RULE = "every_rule"


@dataclass(frozen=True, eq=False)
class Turn(Request):
    """A turn with values that are no numbers alone."""

    model: ClassVar[str] = EVERY_RULE

    moves: Annotated[NDArray[np.float32], Array("float32", (3, "steps"), "moves", low=0, high=2)]


@dataclass(frozen=True, eq=False)
class EveryRule(Request):
    """A request with a field of each kind that must be given."""

    model: ClassVar[str] = EVERY_RULE
    turn: ClassVar[type[Request] | None] = Turn

    said: Annotated[str, text("text", 60)]
    choice: Annotated[str, one_of(("first", "second"), "choice")]
    side: Annotated[int, multiple(32, "side")]
    share: Annotated[float, within(0.2, 0.3, "share")]
    loud: Annotated[bool, boolean("loud")]
    image: Annotated[bytes | NDArray[np.uint8], Image("a picture", smallest_px=16, largest_px=64)]
    keys: Annotated[NDArray[np.uint8], Array("uint8", ("frames", 2), "keys", high=1)]
    clock: Annotated[NDArray[np.float32], Array("float32", ("frames",), "clock")]
    steps: Steps = 50
    seed: Seed = 0
    timeout_s: TimeoutS = None

    def conflicts(self) -> list[str]:
        """Return the problem of a picture that is taller than wide."""
        height, width, _ = images.pixels(self.image).shape
        return ["image must be wide"] if height > width else []


@dataclass(frozen=True, eq=False)
class Closed(Request):
    """A request that no drawn value fits."""

    model: ClassVar[str] = "closed"

    code: Annotated[int, within(123_456_789, 123_456_789, "code")]


class Opened(Closed):
    """A request that proposes its value."""

    @classmethod
    def sample_values(cls, random: np.random.Generator) -> Mapping[str, Any]:
        return {"code": 123_456_789}


@pytest.mark.parametrize("request_class", [*REQUESTS, EveryRule], ids=lambda each: each.model)
def test_sample_keeps_every_rule_and_is_that_of_its_seed(request_class: type[Request]) -> None:
    served = ServedModel(request_class.model)
    made = [sample(request_class, served, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    first, again, other = (sampled_values(each) for each in made)
    np.testing.assert_equal(first, again)
    assert any(not np.array_equal(first[name], other.get(name, ())) for name in first)


def test_values_of_the_served_model_are_used_before_drawn_ones() -> None:
    file = io.BytesIO()
    Pillow.new("RGB", (32, 24), "red").save(file, "PNG")
    parameters = {
        "usual_steps": "4", "range_side": "64:64", "words_said": "alpha", "usual_frames": "7",
        "example_image": base64.b64encode(file.getvalue()).decode(),
    }  # fmt: skip
    served = ServedModel(EVERY_RULE, parameters)
    made = sample(EveryRule, served, np.random.default_rng(0), {"choice": "second"})
    assert (made.steps, made.side, set(made.said.split()), made.choice) == (4, 64, {"alpha"}, "second")
    assert made.image == file.getvalue() and made.keys.shape == (7, 2) and made.clock.shape == (7,)


def test_refusal_names_the_rule_and_the_method_when_no_value_fits() -> None:
    random = np.random.default_rng(0)
    with pytest.raises(InvalidRequest) as refused:
        sample(Closed, ServedModel("closed"), random)
    assert "code must be 123456789 to 123456789" in str(refused.value)
    assert str(refused.value).endswith(
        "try a method sample_values of Closed that returns values of these fields"
    )
    assert sample(Opened, ServedModel("closed"), random).code == 123_456_789


def test_wrong_values_break_the_rule_of_their_field() -> None:
    wrong = wrong_values(EveryRule)
    assert set(wrong) == {"choice", "side", "share", "image", "clock", "keys", "steps", "seed", "timeout_s"}
    for field in fields_of(EveryRule):
        if field.name in wrong:
            assert field.problem(wrong[field.name]).startswith(f"{field.name} must be")


def test_kind_of_a_request_has_its_turns_its_limit_and_what_the_server_says() -> None:
    kind = sampled_kind(EveryRule, 7.0, {"choice": "second"})
    assert kind.fit is not None
    kind = kind.fit(ServedModel(EVERY_RULE, {"usual_steps": "3"}))
    ask, again = kind.make(1), kind.make(1)
    assert isinstance(ask.opening, EveryRule)
    assert (ask.opening.timeout_s, ask.opening.choice, ask.opening.steps) == (7.0, "second", 3)
    assert len(ask.turns) == 2 and all(isinstance(turn, Turn) for turn in ask.turns)
    np.testing.assert_equal(sampled_values(ask.opening), sampled_values(again.opening))
    assert kind.bad["steps"](50) == -1 and "moves" in kind.bad
    with pytest.raises(InvalidRequest, match="soak: fields of every_rule must be of .*got .'speed'"):
        sampled_kind(EveryRule, 7.0, {"speed": 2})
