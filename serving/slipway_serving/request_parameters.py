"""The parameters that come with a request beside its tensors, read and checked.

HTTP's generate endpoints have no other place for a time limit, a session's turn and the shapes of arrays:
Triton turns every JSON field that is no input into a parameter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from slipway_serving.caller_ids import shown
from slipway_serving.errors import InvalidRequest
from slipway_serving.program import Tensors
from slipway_serving.requests import SHAPE_PARAMETER
from slipway_serving.texts import short

GRPC_MARK = "user-agent"
"""Parameter that a request which came over gRPC has: the metadata that every gRPC library sends, handed on
by `--grpc-header-forward-pattern`. Calls between models carry it too."""
MARKED_VARIABLE = "SLIPWAY_GRPC_IS_MARKED"
"""Environment variable of a server's processes that is set where Triton marks requests so."""
# What Triton 2.51 itself puts into a request's parameters: HTTP's generate endpoints repeat "id" there and
# hand on "timeout" (microseconds) and a session's turn unheeded, which we heed. gRPC consumes its own ones.
_OWN_PARAMETERS = frozenset({"id", "timeout", "sequence_id", "sequence_start", "sequence_end", GRPC_MARK})
_NAMED = 5


def wants_text(request: Any) -> bool:
    """Return whether the answers to a request of a decoupled model must be text.

    They must where the request came over HTTP: Triton serves decoupled models there through its generate
    endpoints only, whose answers are JSON, and puts bytes into them as if they were text. Nothing in such a
    request tells so in Triton 2.51; those that came over gRPC are marked instead.
    """
    return bool(os.environ.get(MARKED_VARIABLE)) and GRPC_MARK not in json.loads(request.parameters() or "{}")


def read_parameters(request: Any, model: str) -> dict[str, Any]:
    """Return a request's parameters.

    HTTP's generate endpoints turn JSON fields that are no input into parameters, so an unknown one is most
    likely a misspelt field.

    Raises:
        InvalidRequest: naming the unknown ones, or a timeout that is no number of microseconds.
    """
    parameters: dict[str, Any] = json.loads(request.parameters() or "{}")
    given = {name for name in parameters if not name.startswith(SHAPE_PARAMETER)}
    if unknown := sorted(given - _OWN_PARAMETERS):
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        raise InvalidRequest(
            f"{model}: fields must be inputs of the model, got unknown"
            f" {', '.join(map(shown, unknown[:_NAMED]))}{more}; try the input names of the model's metadata"
        )
    timeout_us = parameters.get("timeout", 0)
    if isinstance(timeout_us, bool) or not isinstance(timeout_us, int) or timeout_us < 0:
        raise InvalidRequest(
            f"{model}: timeout must be a number of microseconds, got {short(timeout_us)}; try timeout_s"
        )
    return parameters


def shaped(tensors: Tensors, parameters: Mapping[str, Any], model: str) -> Tensors:
    """Return tensors in the shapes that the parameters tell: HTTP's generate endpoints take flat arrays only.

    Raises:
        InvalidRequest: a shape is none, or not that of its input.
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
                f"{model}: {shown(key)} must be the shape of an input, sizes with commas between, got"
                f" {short(text)}"
            ) from None
    return found
