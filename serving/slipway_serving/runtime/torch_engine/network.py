"""Loading of a network: its module, its tensors, and the linear layers that may be quantized.

A parameter of the model's configuration names the function that loads the network (``network``,
``package.module:function``), just as another names the program: only the exporter of a checkpoint knows how
it becomes a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.backends.onnxruntime.signature import Signature
from slipway_serving.runtime.named_code import load_named


@dataclass(frozen=True)
class Network:
    """Loaded network.

    Attributes:
        module: Module in eval mode, on the CPU; its forward takes and returns the signature's tensors in
            their order.
        signature: Tensors of the network, with the names and shapes of its ONNX graph.
        products: Paths of the linear layers whose weights may be quantized.
    """

    module: nn.Module
    signature: Signature
    products: frozenset[str]


Load = Callable[[Path, str], Network]
"""Function that loads the network of a description file in a precision of :data:`~.options.PRECISIONS`."""


def load_network(where: str, name: str, file: Path, precision: str) -> Network:
    """Load a network with a function that is given by name.

    Args:
        where: Name of the model, for messages.
        name: Name of the function, ``package.module:function``.
        file: File that describes the network.
        precision: Precision of the loaded network.

    Raises:
        InvalidRequest: There is no such function, or the files are invalid.
    """
    try:
        load: Load = load_named(name)
    except (ValueError, ModuleNotFoundError, AttributeError) as error:
        raise InvalidRequest(
            f"{where}: parameter network of config.pbtxt must be an importable"
            f" package.module:function, got {name!r} ({error})"
        ) from error
    return load(file, precision)
