"""A network as the program serves it: the module, its tensors, and which of its products may be quantized.

What makes it is named by a parameter of the model's configuration (``network``, ``package.module:function``),
as its program is: how a checkpoint becomes a network is known to who exported it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from slipway_serving.backends.onnxruntime.signature import Signature
from slipway_serving.errors import InvalidRequest


@dataclass(frozen=True)
class Network:
    """A network that was loaded.

    Attributes:
        module: in eval mode, on the CPU; its forward takes and gives the signature's tensors in their order.
        signature: of its tensors, as its graph would have them.
        products: paths of the linear layers whose weights may be quantized.
    """

    module: nn.Module
    signature: Signature
    products: frozenset[str]


Load = Callable[[Path, str], Network]
"""Loads the network that a file of a version folder says, in a precision of :data:`~.options.PRECISIONS`."""


def load_network(where: str, name: str, file: Path, precision: str) -> Network:
    """Load a network by the function that is named for it.

    Args:
        where: how messages name the model.
        name: of the function, ``package.module:function``.
        file: that says what the network is made of.
        precision: to load it in.

    Raises:
        InvalidRequest: the name is of nothing, or the files are not as they must be.
    """
    module, _, attribute = name.partition(":")
    try:
        load: Load = getattr(importlib.import_module(module), attribute)
    except (ValueError, ModuleNotFoundError, AttributeError) as error:
        raise InvalidRequest(
            f"{where}: parameter network of config.pbtxt must be an importable"
            f" package.module:function, got {name!r} ({error})"
        ) from error
    return load(file, precision)
