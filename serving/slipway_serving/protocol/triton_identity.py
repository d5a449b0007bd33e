"""Check whether the server at an address is Triton, from the protocol extensions that it lists.

A port that answers 200 may belong to any server: Triton's own metrics, a web server, a gateway. `GET /v2` and
gRPC's `ServerMetadata` list the extensions of the protocol that a server supports.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

_TRITONS = frozenset(("model_repository", "model_configuration", "binary_tensor_data"))


def is_triton(extensions: Sequence[str]) -> bool:
    """Return True if the extensions that a server lists show that it is Triton.

    The server's name proves nothing, since `tritonserver --id` sets it. Other servers of the same protocol
    list no extensions, or not these.
    """
    return _TRITONS.issubset(extensions)


def extensions(body: bytes) -> tuple[str, ...]:
    """Return the extensions in an answer to `GET /v2`; none if the answer has another form."""
    try:
        return tuple(map(str, json.loads(body)["extensions"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return ()
