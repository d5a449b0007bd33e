"""Sessions of this process that failed: worlds and microphones, which have no job in the database."""

from __future__ import annotations

import time
from collections import deque

from slipway_gateway.jobs.job import Failure
from slipway_gateway.realtime.channel import CallerSilent, Disconnected, Refused, error_code_of
from slipway_serving.protocol.errors import Cancelled, InvalidRequest, SlipwayError

_MOST = 200
_INTERNAL = "the session ended by an error of the gateway; its log has the traceback"


class SessionFailures:
    """The newest failures of sessions, for operators."""

    def __init__(self) -> None:
        self._kept: deque[Failure] = deque(maxlen=_MOST)

    def record(self, session_id: str, model: str, error: Exception) -> None:
        """Keep a failure, unless the caller is the reason for it.

        Args:
            session_id: Identifier of the session in the log.
            model: Name of the served model.
            error: Error that ended the session.
        """
        if isinstance(error, InvalidRequest | Cancelled | CallerSilent | Refused | Disconnected):
            return
        code, message = "internal", _INTERNAL
        if isinstance(error, SlipwayError):
            code, message = error_code_of(error), str(error)
        self._kept.appendleft(Failure(session_id, model, time.time(), code, message))

    def since(self, begin: float) -> list[Failure]:
        """Return the failures since a time, the newest first.

        Args:
            begin: Time, in Unix seconds.
        """
        return [failure for failure in self._kept if failure.at >= begin]
