"""Conversion of decoding failures into one error that names the server and the model.

A server may be broken, of another version, or hostile. Clients decode its answers inside :func:`decoding`,
which turns every failure into :class:`~slipway_serving.protocol.errors.Malformed`.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

from slipway_serving.protocol.errors import Malformed

ERRORS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, struct.error)
"""Errors that Python, NumPy and the JSON parser raise for malformed data."""


@contextlib.contextmanager
def decoding(url: str, what: str) -> Iterator[None]:
    """Raise one clear error if the block cannot decode an answer.

    Args:
        url: URL of the server.
        what: Name of the model that answered.

    Raises:
        Malformed: The block could not decode the answer.
    """
    try:
        yield
    except Malformed as error:
        text = str(error) if str(error).startswith(what) else f"{what}: {error}"
        raise Malformed(f"{url}: the answer is malformed: {text}") from None
    except ERRORS as error:
        detail = " ".join(str(error).split())[:200]
        raise Malformed(
            f"{url}: the answer is malformed: {what}: {detail} ({type(error).__name__});"
            " see the server's log, or try another url"
        ) from None
