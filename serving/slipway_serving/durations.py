"""Limits on durations that callers give: every one is a number of seconds that timers can wait.

Libraries have a rule for dataclasses and function arguments (:func:`problem`), commands have a callback for
options (:func:`checked_option`). Both refuse NaN, infinity, negative numbers and numbers above
:data:`LONGEST_S`.
"""

from __future__ import annotations

import numpy as np

from slipway_serving.errors import InvalidRequest

LONGEST_S = 30 * 86_400.0
"""The longest duration that is accepted, seconds. Python's timers fail with an overflow above 9.2e9 s."""


def problem(name: str, value: object, *, zero: bool = False) -> str:
    """Return the sentence about a duration that breaks the rule; "" for one that keeps it.

    Args:
        name: Name of the argument or field.
        value: Duration, seconds.
        zero: Whether 0 is allowed.
    """
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if is_number and 0 <= value <= LONGEST_S and (zero or value > 0):  # type: ignore[operator]
        return ""
    lowest = "at least 0" if zero else "above 0"
    return f"{name} must be {lowest} and at most {LONGEST_S:.0f} seconds (30 days), got {value!r}; try 60"


def check(where: str, name: str, value: float | None, *, zero: bool = False) -> None:
    """Check a duration that may be left out.

    Args:
        where: What was called; begins the error's text.
        name: Name of the argument.
        value: Duration, seconds; None states none.
        zero: Whether 0 is allowed.

    Raises:
        InvalidRequest: The duration is not a number, not finite, negative or too long.
    """
    if value is not None and (wrong := problem(name, value, zero=zero)):
        raise InvalidRequest(f"{where}: {wrong}")


def checked_option(value: float | None) -> float | None:
    """Check the duration that an option of a command gives, beside the option's own range.

    Raises:
        typer.BadParameter: The duration is NaN, negative, infinite or too long. The option's own range does
            not refuse NaN, since no comparison with it is true.
    """
    import typer  # only commands have it loaded already

    if value is not None and not 0 <= value <= LONGEST_S:
        raise typer.BadParameter(f"must be at least 0 and at most {LONGEST_S:.0f}, got {value}")
    return value
