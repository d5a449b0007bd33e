"""Checks of durations that callers give, so that every duration is a number of seconds that timers can wait.

Libraries check dataclass fields and function arguments with :func:`problem`; commands check options with the
callback :func:`checked_option`. Both refuse NaN, infinity, negative numbers and numbers above
:data:`LONGEST_S`.
"""

from __future__ import annotations

import numpy as np

from slipway_serving.protocol.errors import InvalidRequest

LONGEST_S = 30 * 86_400.0
"""Longest accepted duration, in seconds. Python's timers fail with an overflow above 9.2e9 s."""


def problem(name: str, value: object, *, zero: bool = False) -> str:
    """Return an error message if a duration is not allowed, or an empty string.

    Args:
        name: Name of the argument or field.
        value: Duration, in seconds.
        zero: True if 0 is allowed.
    """
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if is_number and 0 <= value <= LONGEST_S and (zero or value > 0):  # type: ignore[operator]
        return ""
    lowest = "at least 0" if zero else "above 0"
    return f"{name} must be {lowest} and at most {LONGEST_S:.0f} seconds (30 days), got {value!r}; try 60"


def check(where: str, name: str, value: float | None, *, zero: bool = False) -> None:
    """Check an optional duration.

    Args:
        where: Name of the called function or object; the error's text begins with it.
        name: Name of the argument.
        value: Duration, in seconds; None skips the check.
        zero: True if 0 is allowed.

    Raises:
        InvalidRequest: The duration is not a number, not finite, negative or too long.
    """
    if value is not None and (wrong := problem(name, value, zero=zero)):
        raise InvalidRequest(f"{where}: {wrong}")


def checked_option(value: float | None) -> float | None:
    """Check a command option's duration, in addition to the option's own range.

    Raises:
        typer.BadParameter: The duration is NaN, negative, infinite or too long. The option's own range does
            not refuse NaN, since every comparison with NaN is false.
    """
    import typer  # Only commands have loaded it already.

    if value is not None and not 0 <= value <= LONGEST_S:
        raise typer.BadParameter(f"must be at least 0 and at most {LONGEST_S:.0f}, got {value}")
    return value
