"""Reader of the settings in an AirIMU experiment's `.conf` on which the network and its input depend.

The format is HOCON. Upstream's files include others with settings for training and data sets. These are not
needed here, and an include could name any file or URL, so includes are not followed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway_serving.protocol.errors import InvalidRequest, raise_all

CONF_FILE = "codenet.conf"
WEIGHTS_FILE = "ckpt/best_model.ckpt"
GRAVITY_M_S2 = 9.81007
"""Upward acceleration that upstream's `padding9` writes into the lead-in."""

# Acceleration in the lead-in of a recording for each network, by the name of upstream's collate function.
LEAD_GRAVITY_M_S2 = {
    "codenet": {"padding9": GRAVITY_M_S2, "Gpadding": 0.0},
    "codenetkitti": {"base": 0.0},
}
_INCLUDE = re.compile(r"^[ \t]*include[ \t]+\"[^\"\n]*\"[ \t]*$", re.MULTILINE)
_OTHER_INCLUDE = re.compile(r"\binclude\s*(?:\"|url|file|package|required)", re.IGNORECASE)


@dataclass(frozen=True)
class Conf:
    """Settings of the network from a conf.

    Attributes:
        network: Name of the network, codenet or codenetkitti.
        covariance: True if the network returns variances (propcov).
        lead_gravity_m_s2: Upward acceleration in the lead-in (collate).
        acc_std: Scale of CodeNet's corrections of acceleration, m/s².
        gyro_std: Scale of CodeNet's corrections of the rate of rotation, rad/s.
    """

    network: str = "codenet"
    covariance: bool = True
    lead_gravity_m_s2: float = GRAVITY_M_S2
    acc_std: float = 0.1
    gyro_std: float = math.pi / 180


def read_conf(folder: Path, source: str) -> Conf:
    """Read the conf of a checkpoint.

    Args:
        folder: Folder of the checkpoint.
        source: Name of the checkpoint in error messages.

    Raises:
        InvalidRequest: The conf is missing, is no HOCON, or contains an unknown network or invalid value.
    """
    where = f"checkpoint {source}: {CONF_FILE}"
    entries = _parse(folder / CONF_FILE, where)
    problems = []
    network = entries("train.network", None)
    if not isinstance(network, str) or network not in LEAD_GRAVITY_M_S2:
        known = " or ".join(LEAD_GRAVITY_M_S2)
        fix = "no other network is supported"
        if network is None:
            fix = "includes are not followed, try the entry in the file itself"
        raise InvalidRequest(f"{where}: train.network must be {known}, got {network!r}; {fix}")
    collates = LEAD_GRAVITY_M_S2[network]
    collate = entries("dataset.collate", "base")
    if not isinstance(collate, str) or collate not in collates:
        problems.append(f"dataset.collate must be {' or '.join(collates)} for {network}, got {collate!r}")
    covariance = entries("train.propcov", None)
    if not isinstance(covariance, bool):
        problems.append(f"train.propcov must be True or False, got {covariance!r}")
    scales = {name: entries(f"train.{name}", getattr(Conf, name)) for name in ("acc_std", "gyro_std")}
    problems += [
        f"train.{name} must be a number above 0, got {value!r}"
        for name, value in scales.items()
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf
    ]
    raise_all(where, problems)
    return Conf(network, covariance, collates[collate], **{name: float(x) for name, x in scales.items()})


def _parse(path: Path, where: str) -> Callable[[str, Any], Any]:
    """Return a function that takes an entry's dotted name and a default, and returns the entry's value."""
    from pyhocon import ConfigFactory
    from pyhocon.exceptions import ConfigException
    from pyparsing import ParseBaseException

    try:
        text = _INCLUDE.sub("", path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{where} must be a text file, got {error}") from None
    if _OTHER_INCLUDE.search(text):
        raise InvalidRequest(f'{where}: include must be "FILE" on a line of its own, got another one')
    try:
        conf = ConfigFactory.parse_string(text)
    except (
        ParseBaseException,
        ConfigException,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
    ) as error:
        raise InvalidRequest(f"{where} must be HOCON, got {error}") from None

    def entry(name: str, default: Any) -> Any:
        value, names = conf, name.split(".")
        for depth, part in enumerate(names):
            if not isinstance(value, Mapping):
                raise InvalidRequest(
                    f"{where}: {'.'.join(names[:depth]) or 'the file'} must be a mapping, got {value!r}"
                )
            value = value.get(part, None)
            if value is None:
                return default
        return value

    return entry
