"""Layouts of recording files: the quantity and unit of each column, from the names in the header."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipway_client.imu.units import ACCELERATIONS, RATES, TIME_NS

TIME = "time"
# Spellings of units in headers, without spaces, slashes, powers and signs.
_SPELLINGS: dict[str, dict[str, str]] = {
    TIME: {
        **{unit: unit for unit in TIME_NS},
        **{"nsec": "ns", "nanoseconds": "ns", "usec": "us", "µs": "us", "μs": "us", "microseconds": "us"},
        **{"msec": "ms", "milliseconds": "ms", "sec": "s", "secs": "s", "seconds": "s"},
    },
    "gyro": {
        **dict.fromkeys(("rads", "rads1", "radsec", "radianss"), "rad/s"),
        **dict.fromkeys(("degs", "degs1", "dps", "°s", "degsec", "degreess"), "deg/s"),
    },
    "acc": {**dict.fromkeys(("ms2", "mss", "mps2", "msec2", "ms²"), "m/s^2"), "g": "g", "gs": "g"},
}
UNITS: dict[str, Sequence[str]] = {TIME: tuple(TIME_NS), "gyro": tuple(RATES), "acc": tuple(ACCELERATIONS)}
_DEFAULTS = {TIME: "ns", "gyro": "rad/s", "acc": "m/s^2"}
_NAMES = {
    "gyro": "w_rs_s|w|omega|g|gyr|gyro|gyroscope|ang_vel|angular_?velocity|rotation_?rate",
    "acc": "a_rs_s|a|acc|accel|accelerometer|acceleration|lin_acc|linear_?acceleration",
    "position": "p_rs_r|p|pos|position|t|translation",
    "rotation": "q_rs|q|quat|quaternion|orientation|rotation",
    "velocity": "v_rs_r|v|vel|velocity",
}
_TIME_NAMES = "(?:field_header_)?stamp|time_?stamp|time|t"
_UNIT = re.compile(r"(?P<name>.*?)\s*[\[(](?P<unit>[^\])]*)[\])]")


@dataclass(frozen=True)
class Layout:
    """Groups of columns that a kind of file holds.

    Attributes:
        groups: Axes of each group of columns, in the order in which they follow the time in a file without
            a header.
        counts: Numbers of columns that a file without a header may have.
        optional: Groups that may be missing in a file with a header.
    """

    groups: Mapping[str, str]
    counts: tuple[int, ...]
    optional: tuple[str, ...] = ()


SIGNALS = Layout({"gyro": "xyz", "acc": "xyz"}, (7, 13))
TRUTH = Layout({"position": "xyz", "rotation": "wxyz", "velocity": "xyz"}, (11, 17), ("velocity",))


@dataclass(frozen=True)
class Columns:
    """Places of columns in a row.

    Attributes:
        time: Place of the time.
        groups: Places of each group's axes, in the order of the layout.
        units: Units that the header states for the time and for groups; an unknown unit is kept as it is
            written.
    """

    time: int
    groups: Mapping[str, tuple[int, ...]]
    units: Mapping[str, str]

    def unit(self, quantity: str, stated: str | None) -> tuple[str, str]:
        """Return the unit of a quantity: the one stated by the user, by the header, or the default.

        Returns:
            The unit, and a sentence about an unknown unit in the header ("" if there is none).
        """
        unit = stated or self.units.get(quantity) or _DEFAULTS[quantity]
        known = UNITS[quantity]
        if unit in known:
            return unit, ""
        return known[0], f"unit of {quantity} must be {' or '.join(known)}, got {unit!r} in the header"


def default_columns(layout: Layout) -> Columns:
    """Return the places of columns in a file without a header."""
    at, groups = 1, {}
    for group, axes in layout.groups.items():
        groups[group] = tuple(range(at, at + len(axes)))
        at += len(axes)
    return Columns(0, groups, {})


def header_columns(layout: Layout, header: Sequence[str]) -> tuple[Columns | None, list[str]]:
    """Return the places of the columns that a header names.

    Args:
        layout: Layout of the file.
        header: Names of all columns.

    Returns:
        The places, or None if the header names no known column; and the problems of the header.
    """
    found: dict[tuple[str, str], list[int]] = {}
    units: dict[str, str] = {}
    for place, text in enumerate(header):
        for role, unit in _roles(layout, text):
            found.setdefault(role, []).append(place)
            if unit and role[0] in UNITS:
                units.setdefault(role[0], unit)
    if not found:
        return None, []
    required = [(TIME, ""), *((group, axis) for group, axes in layout.groups.items() for axis in axes)]
    present = {group for group, _ in found}
    missing = [
        role
        for role in required
        if role not in found and (role[0] in present or role[0] not in layout.optional)
    ]
    problems = []
    if missing:
        names = ", ".join(f"{group} {axis}".strip() for group, axis in missing)
        problems.append(
            f"header must name a column for {names}, got {', '.join(header)}; try renaming columns"
        )
    for (group, axis), places in found.items():
        if len(places) > 1:
            both = " and ".join(header[place] for place in places)
            problems.append(f"header must name one column for {f'{group} {axis}'.strip()}, got {both}")
    if problems:
        return None, problems
    groups = {
        group: tuple(found[group, axis][0] for axis in axes)
        for group, axes in layout.groups.items()
        if group in present
    }
    return Columns(found[TIME, ""][0], groups, units), []


def _roles(layout: Layout, text: str) -> list[tuple[tuple[str, str], str]]:
    """Return the role and unit of a column from its name; empty for an unknown column."""
    bracketed = _UNIT.fullmatch(text.strip())
    name, unit = (bracketed["name"], bracketed["unit"]) if bracketed else (text, "")
    name = re.sub(r"[\s.\-/]+", "_", name.strip().lower()).strip("_")
    if time := re.fullmatch(rf"(?:{_TIME_NAMES})(?:_(?P<unit>\w+))?|(?P<alone>seconds|sec)", name):
        written = unit or time["unit"] or time["alone"] or ""
        if not time["unit"] or _unit_name(TIME, time["unit"]) in UNITS[TIME]:
            return [((TIME, ""), _unit_name(TIME, written))]
    for group, axes in layout.groups.items():
        if match := re.fullmatch(
            rf"(?:imu_)?(?:{_NAMES[group]})_?(?P<axis>[{axes}])(?:_(?P<unit>\w+))?", name
        ):
            return [((group, match["axis"]), _unit_name(group, unit or match["unit"] or ""))]
    return []


def _unit_name(quantity: str, written: str) -> str:
    """Return the usual name of a unit; an unknown unit is returned as it is written."""
    bare = re.sub(r"[\s^_/*·-]", "", written.lower())
    return _SPELLINGS.get(quantity, {}).get(bare, written)
