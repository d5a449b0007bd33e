"""Schedule that the user gives a served model: the steps of a distilled network, and the flow's shift."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from slipway_serving.protocol.diffusion.fields import MAX_STEPS
from slipway_serving.protocol.errors import InvalidRequest, raise_all

TRAIN_STEPS = 1000


@dataclass(frozen=True)
class ScheduleDefaults:
    """Defaults of a served model's schedule, which a request may replace.

    Args:
        steps: Timesteps before the shift, descending, e.g. (1000, 750, 500, 250); empty for the checkpoint's
            own schedule.
        flow_shift: Shift of the noise schedule; None for the checkpoint's.

    Raises:
        InvalidRequest: The steps do not descend from at most 1000 to at least 1, or the shift is not above 0.
    """

    steps: tuple[int, ...] = ()
    flow_shift: float | None = None

    def __post_init__(self) -> None:
        steps, shift = self.steps, self.flow_shift
        problems = []
        descending = all(earlier > later for earlier, later in pairwise(steps))
        if steps and not (descending and steps[0] <= TRAIN_STEPS and steps[-1] >= 1):
            problems.append(
                f"steps-list must be descending, {TRAIN_STEPS} to 1, got {','.join(map(str, steps))}; try"
                " 1000,750,500,250"
            )
        if len(steps) > MAX_STEPS:
            problems.append(f"steps-list must have at most {MAX_STEPS} steps, got {len(steps)}")
        if shift is not None and not (math.isfinite(shift) and shift > 0):
            problems.append(f"flow-shift must be a finite number above 0, got {shift:g}")
        raise_all("export", problems)

    def __bool__(self) -> bool:
        return bool(self.facts)

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of a pipeline's facts, ``steps_list`` and ``flow_shift``, as far as they were chosen."""
        steps = {"steps_list": list(self.steps)} if self.steps else {}
        return steps if self.flow_shift is None else {**steps, "flow_shift": self.flow_shift}


def parse_schedule(steps: str | None, flow_shift: float | None) -> ScheduleDefaults:
    """Parse ``--steps-list`` and ``--flow-shift``.

    Raises:
        InvalidRequest: The list is not of whole numbers with commas between them, or breaks a rule.
    """
    texts = [text.strip() for text in steps.split(",")] if steps is not None else []
    if not all(text.isascii() and text.isdigit() for text in texts):
        raise InvalidRequest(
            f"steps-list must be N,N,… in whole numbers, got {steps!r}; try 1000,750,500,250"
        )
    return ScheduleDefaults(tuple(int(text) for text in texts), flow_shift)
