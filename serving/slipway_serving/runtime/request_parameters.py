"""Validation of the request parameters that come beside the tensors.

Triton's HTTP generate endpoints turn every JSON field that is not an input into a parameter. For these
endpoints, parameters are the only way to send a time limit, a session's turn and the shapes of arrays.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from slipway_serving.protocol.caller_ids import shortened_id
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.requests import SHAPE_PARAMETER
from slipway_serving.protocol.texts import short
from slipway_serving.runtime.program import Tensors

GRPC_MARK = "user-agent"
"""Parameter that marks a request which came over gRPC. Every gRPC library sends this metadata, and
`--grpc-header-forward-pattern` forwards it. Calls between models carry it too."""
MARKED_VARIABLE = "SLIPWAY_GRPC_IS_MARKED"
"""Environment variable of a server's processes, set if Triton marks requests with :data:`GRPC_MARK`."""
# Parameters that Triton 2.51 itself adds to a request. The HTTP generate endpoints repeat "id" and pass on
# "timeout" (microseconds) and a session's turn without acting on them; we do. gRPC consumes these itself.
_OWN_PARAMETERS = frozenset({"id", "timeout", "sequence_id", "sequence_start", "sequence_end", GRPC_MARK})
_SHOWN = 5


def wants_text(request: Any) -> bool:
    """Return True if the answers to a request of a decoupled model must be text.

    Answers must be text if the request came over HTTP: Triton serves decoupled models over HTTP only through
    its generate endpoints, whose answers are JSON, and inserts bytes there as if they were text. Nothing in
    such a request shows its protocol in Triton 2.51, so requests that came over gRPC are marked instead.
    """
    return bool(os.environ.get(MARKED_VARIABLE)) and GRPC_MARK not in json.loads(request.parameters() or "{}")


def read_parameters(request: Any, model: str) -> dict[str, Any]:
    """Return a request's parameters after validation.

    The HTTP generate endpoints turn JSON fields that are not inputs into parameters, so an unknown parameter
    is most likely a misspelt field.

    Raises:
        InvalidRequest: Parameters are unknown, or the timeout is not a number of microseconds; the message
            names them.
    """
    parameters: dict[str, Any] = json.loads(request.parameters() or "{}")
    given = {name for name in parameters if not name.startswith(SHAPE_PARAMETER)}
    if unknown := sorted(given - _OWN_PARAMETERS):
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise InvalidRequest(
            f"{model}: fields must be inputs of the model, got unknown"
            f" {', '.join(map(shortened_id, unknown[:_SHOWN]))}{more}; try the input names of the"
            " model's metadata"
        )
    timeout_us = parameters.get("timeout", 0)
    if isinstance(timeout_us, bool) or not isinstance(timeout_us, int) or timeout_us < 0:
        raise InvalidRequest(
            f"{model}: timeout must be a number of microseconds, got {short(timeout_us)}; try timeout_s"
        )
    return parameters


def reshape_inputs(tensors: Tensors, parameters: Mapping[str, Any], model: str) -> Tensors:
    """Return tensors in the shapes that the parameters give.

    The HTTP generate endpoints accept only flat arrays.

    Raises:
        InvalidRequest: A parameter is not a shape, or does not fit its input.
    """
    found = dict(tensors)
    for key, text in parameters.items():
        if not key.startswith(SHAPE_PARAMETER):
            continue
        name = key.removeprefix(SHAPE_PARAMETER)
        try:
            found[name] = tensors[name].reshape([int(size) for size in str(text).split(",")])
        except (KeyError, ValueError):
            raise InvalidRequest(
                f"{model}: {shortened_id(key)} must be the shape of an input, sizes with commas between, got"
                f" {short(text)}"
            ) from None
    return found
