"""Options of engines ``tensorrt`` and ``tensorrt-rtx`` as the user gives them on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slipway_export.engines.tensorrt.plan import EngineOptions, Profiles
from slipway_serving.protocol.errors import raise_all

GIB = 2**30


@dataclass(frozen=True)
class EngineRequest:
    """Options of engines ``tensorrt`` and ``tensorrt-rtx`` from the user.

    Args:
        targets: GPUs to build for, such as ``sm89``; the GPU of this machine when empty.
        profiles: Optimization profiles.
        options: Options of the builder.
        given: Flags that the user gave, with their values.
    """

    targets: tuple[str, ...] = ()
    profiles: Profiles = Profiles.FLEXIBLE
    options: EngineOptions = field(default_factory=EngineOptions)
    given: Mapping[str, str] = field(default_factory=dict)


def parse_request(
    target: str | None,
    profiles: Profiles | None,
    workspace_gib: float | None,
    builder_level: int | None,
    timing_cache: Path | None,
    *,
    refit: bool,
    weight_streaming: bool,
) -> EngineRequest:
    """Return the requested engines from the values of the command line.

    Raises:
        InvalidRequest: A value breaks its rule. The message names each such option.
    """
    targets = tuple(dict.fromkeys(part.strip() for part in (target or "").split(",") if part.strip()))
    problems = [
        f"target must be compute capabilities such as sm89 or sm80,sm120, got {text!r}"
        for text in targets
        if not (text.startswith("sm") and text[2:].isdigit() and len(text) in (4, 5))
    ]
    if workspace_gib is not None and not workspace_gib > 0:
        problems.append(f"workspace-gib must be above 0, got {workspace_gib:g}")
    if builder_level is not None and not 0 <= builder_level <= 5:
        problems.append(f"builder-level must be 0 to 5, got {builder_level}")
    raise_all("export", problems)
    values = {
        "target": target,
        "profiles": profiles,
        "workspace-gib": workspace_gib,
        "builder-level": builder_level,
        "timing-cache": timing_cache,
        "refit": "it" if refit else None,
        "weight-streaming": "it" if weight_streaming else None,
    }
    options = EngineOptions(
        None if workspace_gib is None else int(workspace_gib * GIB),
        builder_level,
        timing_cache,
        refit,
        weight_streaming,
    )
    given = {flag: str(value) for flag, value in values.items() if value is not None}
    return EngineRequest(targets, profiles or Profiles.FLEXIBLE, options, given)
