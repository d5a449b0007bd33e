"""Identities of descriptions: another value, option or code gives another one, another order does not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from slipway_export.repository.identity import _code, identity
from slipway_export.spec import Axis, Tolerance


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Held:
    value: object


def _function(value: object, *, more: object = 1) -> object:
    return value, more


def of_closure(value: object) -> Callable[[], object]:
    def held() -> object:
        return value

    return held


def recursive() -> Callable[[int], int]:
    def down(number: int) -> int:
        return down(number - 1) if number else 0

    return down


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        ("a", "b"),
        (1, "1"),
        (None, 0),
        (Colour.RED, Colour.BLUE),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ([1, 2], [2, 1]),
        ({1, 2}, {1, 3}),
        (np.zeros(2, np.float32), np.ones(2, np.float32)),
        (np.zeros(2, np.float32), np.zeros(2, np.float64)),
        (np.zeros(2), np.zeros((1, 2))),
        (partial(_function, 1), partial(_function, 2)),
        (partial(_function, 1, more=1), partial(_function, 1, more=2)),
        (partial(_function, 1), partial(of_closure, 1)),
        (of_closure(1), of_closure(2)),
        (Held(1), Held(2)),
        (Held(1).__eq__, Held(2).__eq__),
        (Tolerance, Axis),
        (_function, recursive()),
    ],
)
def test_identity_is_another_when_a_value_of_a_description_is(one: object, other: object) -> None:
    first = identity(Held(one), {})
    assert first == identity(Held(one), {})
    assert first != identity(Held(other), {})
    assert identity(Held(0), {"option": one}) != identity(Held(0), {"option": other})


def test_identity_is_the_same_when_only_the_order_of_names_is_another() -> None:
    assert identity({"a": 1, "b": [2]}, {}) == identity({"b": [2], "a": 1}, {})
    assert identity({"x", "y"}, {}) == identity({"y", "x"}, {})
    assert identity(Held(1), {}) != identity(Held(1), {"held": 1})


def test_identity_is_another_when_the_code_of_a_function_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_of_one_file.py").write_text("def make():\n    return 1\n")
    sys.modules.pop("mine_of_one_file", None)
    _code.cache_clear()
    mine = importlib.import_module("mine_of_one_file")
    before = identity(mine.make, {})
    (tmp_path / "mine_of_one_file.py").write_text("def make():\n    return 2\n")
    assert identity(mine.make, {}) == before  # A process has one code.
    _code.cache_clear()
    assert identity(mine.make, {}) != before
    assert identity(of_closure, {}) != before
