"""What is malformed in an answer becomes one error that names the server and the model.

A server may be broken, of another version, or hostile. Its answers are decoded inside :func:`decoding`, and
whatever they break there is told as :class:`~slipway_serving.errors.Malformed`.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

from slipway_serving.errors import Malformed

ERRORS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, struct.error)
"""Errors of Python, NumPy and the JSON parser about data that is not as it must be."""


@contextlib.contextmanager
def decoding(url: str, what: str) -> Iterator[None]:
    """Tell of an answer that the block cannot decode.

    Args:
        url: URL of the server.
        what: Name of the model that answered.

    Raises:
        Malformed: The block failed.
    """
    try:
        yield
    except Malformed as error:
        told = str(error) if str(error).startswith(what) else f"{what}: {error}"
        raise Malformed(f"{url}: the answer is malformed: {told}") from None
    except ERRORS as error:
        detail = " ".join(str(error).split())[:200]
        raise Malformed(
            f"{url}: the answer is malformed: {what}: {detail} ({type(error).__name__});"
            " see the server's log, or try another url"
        ) from None
