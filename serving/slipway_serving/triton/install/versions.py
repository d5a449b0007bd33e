"""What depends on the version of Triton: the arguments that only some releases know.

The nvidia-pytriton wheel carries 2.51. NGC's images state their version in
`/opt/tritonserver/TRITON_VERSION`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from slipway_serving.protocol.errors import NotReady

WHEEL_VERSION = "2.51.0"
"""Version of Triton in the nvidia-pytriton wheel that `pyproject.toml` pins."""
LOWEST = (2, 51)
"""Lowest release that Slipway starts, as (major, minor); earlier ones were never tried."""
ADVISED = (2, 73)
"""Lowest release to advise for production: earlier ones can crash as they shut down."""


@dataclass(frozen=True)
class VersionedArgument:
    """An argument of `tritonserver` that releases from one on need.

    Attributes:
        since: First release that knows the argument, as (major, minor).
        argument: Argument as on the command line.
        reason: Reason for which Slipway passes it.
    """

    since: tuple[int, int]
    argument: str
    reason: str


ARGUMENTS = (
    VersionedArgument(
        (2, 68),
        "--allow-client-shm=true",
        "from this release on, clients cannot register shared memory unless it is allowed; on every server of"
        " Slipway, registering needs the control key",
    ),
)
"""Arguments that depend on the version."""


def parse_version(text: str, where: str) -> tuple[int, int]:
    """Return the release of a version text such as ``2.73.0`` as (major, minor).

    Args:
        text: Version of Triton.
        where: Location of the Triton, for the message.

    Raises:
        NotReady: The text is no version, or the release is lower than :data:`LOWEST`.
    """
    found = re.match(r"\s*(\d+)\.(\d+)", text)
    if found is None:
        raise NotReady(f"server: version of the Triton in {where} must be like 2.73.0, got {text.strip()!r}")
    release = int(found[1]), int(found[2])
    if release < LOWEST:
        raise NotReady(
            f"server: version of the Triton in {where} must be {LOWEST[0]}.{LOWEST[1]} or later, got"
            f" {text.strip()}; try NGC's image tritonserver:26.09-py3"
        )
    return release


def versioned_arguments(release: tuple[int, int]) -> Iterator[str]:
    """Yield the arguments that a release needs."""
    yield from (each.argument for each in ARGUMENTS if release >= each.since)
