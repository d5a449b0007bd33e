"""Registry of the built-in families and of those that other distributions add by an entry point.

A distribution declares a family in the entry point group ``slipway.families``: ``name =
"package.module:FAMILY"``. The registry leaves out a family that fails to load or whose name is taken;
`slipway families` shows the reason. The other families are not affected.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from slipway_export.families.airimu.family import FAMILY as AIRIMU
from slipway_export.families.framepack_i2v.family import FAMILY as FRAMEPACK_I2V
from slipway_export.families.matrix_game.family import FAMILY as MATRIX_GAME
from slipway_export.families.wakeword.family import FAMILY as WAKEWORD
from slipway_export.families.wakeword.family import HEAD as WAKEWORD_HEAD
from slipway_export.families.wan_t2v.family import FAMILY as WAN_T2V
from slipway_export.spec import Family
from slipway_serving.protocol import distribution
from slipway_serving.protocol.errors import InvalidRequest

GROUP = "slipway.families"
BUILT_IN: tuple[Family, ...] = (WAN_T2V, WAKEWORD, WAKEWORD_HEAD, AIRIMU, MATRIX_GAME, FRAMEPACK_I2V)


@dataclass(frozen=True)
class Registered:
    """A family and the distribution that registered it.

    Attributes:
        name: Name of the family, or of its entry point if the family did not load.
        origin: Distribution and version, or the entry point's value if it has no distribution.
        family: Family, or None if it did not load.
        problem: Reason why the family did not load; empty if it did.
    """

    name: str
    origin: str
    family: Family | None
    problem: str = ""


@cache
def registered() -> tuple[Registered, ...]:
    """Return all families: the built-in ones first, then those of other distributions, sorted by name."""
    found = [Registered(family.name, distribution.NAME, family) for family in BUILT_IN]
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        found.append(_loaded(entry, {known.name: known.origin for known in found}))
    return tuple(found)


def families() -> tuple[Family, ...]:
    """Return the families that loaded."""
    return tuple(known.family for known in registered() if known.family is not None)


def family_named(name: str) -> Family:
    """Return a family by its name.

    Raises:
        InvalidRequest: No family has that name, or the family did not load.
    """
    for known in registered():
        if known.name == name and known.family is not None:
            return known.family
    broken = [f"{known.origin}: {known.problem}" for known in registered() if known.name == name]
    reason = f" ({'; '.join(broken)})" if broken else ""
    names = ", ".join(family.name for family in families())
    raise InvalidRequest(f"family must be one of {names}, got {name!r}{reason}")


def _loaded(entry: EntryPoint, taken: dict[str, str]) -> Registered:
    """Load the family of an entry point; the result says why if it cannot be used."""
    dist = entry.dist
    origin = f"{dist.name} {dist.version}" if dist is not None else entry.value
    try:
        family = entry.load()
    except Exception as error:  # noqa: BLE001 - another's package may fail in any way; the reason is shown
        return Registered(entry.name, origin, None, f"{entry.value}: {type(error).__name__}: {error}")
    problem = ""
    if not isinstance(family, Family):
        problem = f"{entry.value} must be a Family, got {type(family).__name__}"
    elif family.name in taken:
        problem = f"its name {family.name} is taken by {taken[family.name]}"
    return (
        Registered(entry.name, origin, None, problem) if problem else Registered(family.name, origin, family)
    )
