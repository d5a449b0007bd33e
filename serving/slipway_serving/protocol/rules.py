"""Rules for scalar fields that several model families share; each function returns a :class:`Rule`.

Triton carries numbers as float32, so the caller's side already refuses a number that is infinite as float32.
"""

from __future__ import annotations

import math

import numpy as np

from slipway_serving.protocol.durations import LONGEST_S
from slipway_serving.protocol.fields import Rule


def text(help_text: str, longest: int) -> Rule:
    """Return the rule for a text of at most `longest` characters."""
    return Rule(
        f"at most {longest} characters",
        lambda value: len(value) <= longest,
        lambda _: "a shorter text",
        help_text,
        format_value=lambda value: f"{len(value)} characters",
    )


def within(low: float, high: float, help_text: str, default: str = "") -> Rule:
    """Return the rule for a number from `low` to `high`, both included."""
    return Rule(
        f"{low} to {high}",
        lambda value: low <= value <= high,
        lambda value: nearest_in_range(value, low, high),
        help_text,
        default=default,
    )


def multiple(of: int, help_text: str) -> Rule:
    """Return the rule for a whole number above 0 that is a multiple of another."""
    return Rule(
        f"a multiple of {of} above 0",
        lambda value: value > 0 and value % of == 0,
        lambda value: nearest_step(value, of, of),
        help_text,
    )


def one_more_than_multiple(of: int, help_text: str) -> Rule:
    """Return the rule for a whole number of at least 1 that is 1 more than a multiple of another."""
    return Rule(
        f"{of}k+1 and at least 1",
        lambda value: value >= 1 and value % of == 1 % of,
        lambda value: nearest_step(value, of, 1),
        help_text,
    )


def fraction(help_text: str) -> Rule:
    """Return the rule for a fraction from 0 to 1."""
    return Rule("0 to 1", lambda value: 0 <= value <= 1, lambda _: "0.0 or 1.0", help_text)


def non_negative(help_text: str, example: str, default: str = "") -> Rule:
    """Return the rule for a finite number of at least 0."""
    return Rule(
        "finite and at least 0",
        lambda value: bool(np.isfinite(_as_float32(value)) and value >= 0),
        lambda _: example,
        help_text,
        default=default,
    )


def positive(help_text: str, example: str, default: str = "") -> Rule:
    """Return the rule for a finite number above 0."""
    return Rule(
        "finite and above 0",
        lambda value: bool(np.isfinite(_as_float32(value)) and _as_float32(value) > 0),
        lambda _: example,
        help_text,
        default=default,
    )


def duration(help_text: str, example: str, default: str = "") -> Rule:
    """Return the rule for a duration in seconds, above 0 and within the range of timers."""
    return Rule(
        f"above 0 and at most {LONGEST_S:.0f}",
        lambda value: bool(_as_float32(value) > 0 and value <= LONGEST_S),
        lambda _: example,
        help_text,
        default=default,
    )


def one_of(choices: tuple[str, ...], help_text: str) -> Rule:
    """Return the rule for a text that is one of several choices; error messages suggest the first."""
    return Rule(f"one of {', '.join(choices)}", choices.__contains__, lambda _: choices[0], help_text)


def boolean(help_text: str) -> Rule:
    """Return the rule for true or false."""
    return Rule("true or false", lambda _: True, lambda _: "false", help_text)


def export_range_problems(name: str, value: int, allowed: tuple[int, int], unit: str = "") -> list[str]:
    """Return an error sentence, in a list, if the exported models do not support a size; else an empty list.

    Args:
        name: Name of the field.
        value: Requested size.
        allowed: Smallest and largest size.
        unit: Unit of the bounds, with a space before it.
    """
    low, high = allowed
    if low <= value <= high:
        return []
    return [
        f"{name} must be {low} to {high}{unit}, the range of the exported models, got {value}; "
        f"try {nearest_in_range(value, low, high)}"
    ]


def nearest_in_range(value: float, low: float, high: float) -> str:
    """Return the nearest number within a range, as text; the lowest for NaN."""
    return str(low) if math.isnan(value) else str(min(max(value, low), high))


def nearest_step(value: int, step: int, first: int) -> str:
    """Return the nearest number that is a whole number of steps above the first, as text."""
    return str(max(first, first + round((value - first) / step) * step)) if abs(value) < 10**9 else str(first)


def _as_float32(value: float) -> np.float32:
    """Return a number as Triton carries it: infinite if it is too large for float32."""
    try:
        with np.errstate(over="ignore"):
            return np.float32(value)
    except OverflowError:
        return np.float32(np.inf)
