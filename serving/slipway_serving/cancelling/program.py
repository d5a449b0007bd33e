"""The program that ends requests under way."""

from __future__ import annotations

from slipway_serving.cancelling.request import Ending, EndRequest
from slipway_serving.cancelling.under_way import end
from slipway_serving.events import tensors
from slipway_serving.program import Call, Responses, Settings
from slipway_serving.requests import decode


class Canceller:
    """Takes an :class:`EndRequest` and answers with :class:`Ending`, at once: it waits for nothing."""

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model

    def run(self, call: Call) -> Responses:
        """Yield whether the request is under way.

        Raises:
            InvalidRequest: the id is none.
        """
        yield tensors(Ending(end(decode(EndRequest, call.tensors, self._model).ended_id)))

    def close(self) -> None:
        """Nothing is held."""
