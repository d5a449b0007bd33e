"""Reader of `torch.save` files that runs no code from them, and compares their keys with a network's.

torch's restricted unpickler makes tensors and plain values, and the NumPy numbers that training scripts store
beside them. A file that asks for anything else is refused.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slipway_export.checkpoint.keys import shown_keys
from slipway_serving.protocol.errors import InvalidRequest

_REFUSED_GLOBAL = re.compile(r"GLOBAL (\S+)|Unsupported (?:global|class|type): (?:GLOBAL )?(\S+)")
_SCALAR = np.float64(0).__reduce__()[0]
_NUMBERS: tuple[Any, ...] = (
    np.dtype,
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
    *(type(np.dtype(kind)) for kind in (np.float64, np.float32, np.int64, np.int32, np.bool_)),
)
# NumPy arrays are plain data too: their elements are made by the same restricted unpickler.
_ARRAYS: tuple[Any, ...] = (
    np.ndarray,
    *((np.zeros(0).__reduce__()[0], f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
)
_SHOWN_KEYS = 5
STATE_ENTRIES = ("model_state_dict", "state_dict", "model")
"""Names of the entry with the weights, as training loops and Lightning write it."""


def read_torch_file(path: Path, where: str, *, mapped: bool = False) -> dict[str, Any]:
    """Read a dictionary of tensors and plain values.

    Args:
        path: Path of the file.
        where: Name of the file in messages.
        mapped: True to leave the tensors in the file until they are used; the file must not change meanwhile.
            A file from before torch 1.6, which is no archive, is read whole.

    Raises:
        InvalidRequest: The file is missing, was not written by `torch.save`, asks to run code, or contains
            something else.
    """
    try:
        with torch.serialization.safe_globals([*_NUMBERS, *_ARRAYS]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The error below says more than warnings about pickle protocols.
            mmap = mapped and zipfile.is_zipfile(path)
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise InvalidRequest(f"{where} must exist, got no such file") from None
    except pickle.UnpicklingError as error:
        if found := _REFUSED_GLOBAL.search(str(error)):
            raise InvalidRequest(
                f"{where} must hold tensors and plain values only, got a pickle that calls"
                f" {found[1] or found[2]}; it was not run, try a file of a source that you trust"
            ) from None
        raise InvalidRequest(
            f"{where} must be a file of torch.save, got a pickle of another kind; it was not run"
        ) from None
    # torch.load raises any of these for a truncated or foreign file.
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{where} must be a file of torch.save, got {_first_line(error)}") from None
    if not isinstance(content, dict):
        raise InvalidRequest(f"{where} must hold a dictionary, got {type(content).__name__}")
    return content


def state_in(content: Mapping[str, Any], expected: Collection[str], where: str) -> dict[str, Any]:
    """Return the weights in a training checkpoint, by the keys of the network.

    The file may have them under an entry (`model_state_dict`, Lightning's `state_dict`, `model`), or contain
    nothing else. A prefix that all keys of the network have in the file (``module.`` of DataParallel, an
    attribute of a Lightning module) is removed, and entries without it, such as metrics, are left out.

    Args:
        content: Content of the file.
        expected: Keys of the network.
        where: Name of the file in messages.

    Raises:
        InvalidRequest: The file has no weights.
    """
    bare = bool(content) and all(isinstance(value, torch.Tensor) for value in content.values())
    state = content if bare else next((content[name] for name in STATE_ENTRIES if name in content), None)
    if state is None:
        raise InvalidRequest(
            f"{where} must have {', '.join(STATE_ENTRIES)}, or tensors alone, got"
            f" {shown_keys([str(name) for name in content]) or 'nothing'}"
        )
    if not isinstance(state, Mapping):
        raise InvalidRequest(f"{where} must hold tensors by name, got {type(state).__name__}")
    found, first = {str(key): value for key, value in state.items()}, min(expected)
    prefixes = [key.removesuffix(first) for key in found if key.endswith(f".{first}")]
    prefix = next((each for each in prefixes if all(each + key in found for key in expected)), "")
    return {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}


def load_weights(network: torch.nn.Module, state: object, where: str) -> None:
    """Load weights into a network; arguments and errors are those of :func:`checked_weights`."""
    network.load_state_dict(dict(checked_weights(network, state, where)))


def checked_weights(network: torch.nn.Module, state: object, where: str) -> Mapping[str, torch.Tensor]:
    """Return weights that a network can load, after checking them.

    Args:
        network: Network whose keys and shapes the weights must have; it may be on the meta device.
        state: Tensors by name.
        where: Name of the weights in messages.

    Raises:
        InvalidRequest: Keys are missing, unknown, of another shape or not finite. The message names the first
            of them.
    """
    shapes = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    return checked_tensors(shapes, state, where, type(network).__name__)


def checked_tensors(
    expected: Mapping[str, tuple[int, ...]], state: object, where: str, owner: str
) -> Mapping[str, torch.Tensor]:
    """Return tensors after checking that they have exactly the expected names and shapes.

    Args:
        expected: Shapes by name.
        state: Tensors by name.
        where: Name of the tensors in messages.
        owner: Name of the network with these keys, for messages.

    Raises:
        InvalidRequest: The tensors differ, as for :func:`checked_weights`.
    """
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise InvalidRequest(f"{where} must hold tensors by name, got another content")
    problems = []
    if missing := sorted(expected.keys() - state.keys()):
        problems.append(f"missing keys {shown_keys(missing)}")
    if unknown := sorted(map(str, state.keys() - expected.keys())):
        problems.append(f"unknown keys {shown_keys(unknown)}")
    for key in sorted(expected.keys() & state.keys()):
        if tuple(state[key].shape) != expected[key]:
            problems.append(f"{key} of shape {list(state[key].shape)}, not {list(expected[key])}")
        elif not bool(torch.isfinite(state[key]).all()):
            problems.append(f"NaN or infinity in {key}")
    if problems:
        shown = "; ".join(problems[:_SHOWN_KEYS])
        raise InvalidRequest(f"{where} must have the keys of {owner}, got {shown}")
    return state


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
