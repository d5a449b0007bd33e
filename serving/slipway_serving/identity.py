"""Whether what answers at an address is Triton, by what it says of itself.

A port that answers 200 may be anybody's: Triton's own metrics, a web server, a gateway. `GET /v2` and gRPC's
`ServerMetadata` list the extensions of the protocol that a server has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

_TRITONS = frozenset(("model_repository", "model_configuration", "binary_tensor_data"))


def is_triton(extensions: Sequence[str]) -> bool:
    """Tell from the extensions that a server lists whether it is Triton.

    Its name does not tell: `tritonserver --id` sets it. Other servers of the same protocol list no
    extensions, or not these.
    """
    return _TRITONS.issubset(extensions)


def extensions(body: bytes) -> tuple[str, ...]:
    """Return the extensions in the answer to `GET /v2`; none where the answer has another form."""
    try:
        return tuple(map(str, json.loads(body)["extensions"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return ()
