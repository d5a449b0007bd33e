"""A served model that is cheap to soak, and its traffic; copied beside its model.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from slipway_serving.protocol.events import Event, output_field
from slipway_serving.protocol.requests import Request, decode
from slipway_serving.protocol.rules import within
from slipway_serving.runtime.program import Call, Responses, Settings


@dataclass(frozen=True)
class Counted(Event):
    """One of the numbers that were asked for."""

    number: Annotated[int, output_field("from 1")]


@dataclass(frozen=True)
class CountRequest(Request):
    """Numbers from 1 to the last."""

    model: ClassVar[str] = "counting"
    events: ClassVar[tuple[type[Event], ...]] = (Counted,)

    last: Annotated[int, within(1, 100, "number to count to")]


class Counting:
    """Streams the numbers."""

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model

    def run(self, call: Call) -> Responses:
        """Count."""
        for number in range(1, decode(CountRequest, call.tensors, self._model).last + 1):
            yield {"number": np.array([number], np.int64)}

    def close(self) -> None:
        """Hold nothing."""
