"""Program that cancels running requests."""

from __future__ import annotations

from slipway_serving.protocol.cancellation import CancelRequest, CancelResult
from slipway_serving.protocol.events import tensors
from slipway_serving.protocol.requests import decode
from slipway_serving.runtime.cancellation.running_requests import cancel_request
from slipway_serving.runtime.program import Call, Responses, Settings


class Canceller:
    """Program that takes a :class:`CancelRequest` and returns a :class:`CancelResult` without waiting."""

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model

    def run(self, call: Call) -> Responses:
        """Yield one response, which says whether the request is running.

        Raises:
            InvalidRequest: The id is empty or too long.
        """
        request = decode(CancelRequest, call.tensors, self._model)
        yield tensors(CancelResult(cancel_request(request.ended_id, stop=request.stop)))

    def close(self) -> None:
        """Do nothing: this program has nothing to free."""
