"""The registry of families: the one place that lists them."""

from __future__ import annotations

from slipway_export.families import airimu, wakeword, wan_t2v
from slipway_export.spec import Family
from slipway_serving.errors import InvalidRequest

FAMILIES: tuple[Family, ...] = (wan_t2v.FAMILY, wakeword.FAMILY, wakeword.HEAD, airimu.FAMILY)


def family_named(name: str) -> Family:
    """Return a family by its name.

    Raises:
        InvalidRequest: there is none of that name.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    raise InvalidRequest(f"family must be one of {', '.join(f.name for f in FAMILIES)}, got {name!r}")
