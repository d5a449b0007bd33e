"""One generation without its input and output: what :class:`Client` and :class:`AsyncClient` share.

A plan is made from the request before anything is sent; it holds the tensors, the deadline, the attempts and
the assembler of responses. The clients only move bytes and sleep where it tells them to.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from slipway_client.metadata import ModelMetadata, check_tensors
from slipway_client.results import Assembler, Frames, Progress, Video
from slipway_client.retry import Attempts, Deadline, RetryPolicy
from slipway_client.tensors import Tensors
from slipway_serving.errors import InvalidRequest, NotReady, SlipwayError
from slipway_serving.requests import encode
from slipway_serving.wan_t2v.request import TextToVideoRequest

Protocol = Literal["grpc", "http"]
Event = Progress | Video | Frames

# The server is told the limit and looks at it between steps; it gets this long to say so itself.
_SERVER_GRACE_S = 1.0


class Generation:
    """The state of one generation.

    Attributes:
        model: the served model.
        tensors: the request, encoded for the protocol.
        deadline: of the whole generation, attempts included.
    """

    def __init__(
        self,
        request: TextToVideoRequest,
        model: str,
        timeout_s: float | None,
        protocol: Protocol,
        policy: RetryPolicy,
    ) -> None:
        request = _for_protocol(request, protocol)
        if timeout_s is not None:
            request = dataclasses.replace(request, timeout_s=timeout_s)
        self.model = model
        self.tensors: Tensors = encode(request)
        self.deadline = Deadline(request.timeout_s, model, grace_s=_SERVER_GRACE_S)
        self._attempts = Attempts(policy, self.deadline)
        self._assembler = Assembler(request, model)
        self._answered = False

    def check(self, metadata: ModelMetadata) -> None:
        """Check the request against the served model.

        Raises:
            InvalidRequest: the model takes other tensors.
        """
        check_tensors(metadata, self.tensors)

    def add(self, response: Tensors) -> Progress | None:
        """Take a response; see :meth:`Assembler.add`."""
        self._answered = True
        return self._assembler.add(response)

    def result(self) -> Video | Frames:
        """Return the whole result after the stream's end; see :meth:`Assembler.result`."""
        return self._assembler.result()

    def wait_s(self, error: SlipwayError) -> float:
        """Return how long to wait before another attempt, in seconds.

        Raises:
            SlipwayError: the error itself, when there is to be none; always once a response has arrived.
        """
        if self._answered:
            raise error
        return self._attempts.wait_s(error)


def not_ready(what: str, url: str) -> NotReady:
    """Return the error for a server or a model that says it is not ready."""
    return NotReady(f"{what}: not ready on {url}; try again when it has loaded, or see the server's log")


def _for_protocol(request: TextToVideoRequest, protocol: Protocol) -> TextToVideoRequest:
    if protocol == "grpc":
        return request
    if request.output == "frames":
        raise InvalidRequest(
            f"{request.model}: output must be video over HTTP, got frames; try protocol grpc or output video"
        )
    # Triton writes tensors into JSON text over HTTP, which an MP4 file's bytes are not.
    return dataclasses.replace(request, output="video_base64")
