"""Reads what `torch.save` wrote, without running any of it, and compares its keys with a network's.

torch's restricted unpickler makes tensors and plain values, and the NumPy numbers that training scripts leave
beside them; a file that asks for anything else is refused.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slipway_serving.errors import InvalidRequest

_REFUSED_GLOBAL = re.compile(r"GLOBAL (\S+)|Unsupported (?:global|class|type): (?:GLOBAL )?(\S+)")
_SCALAR = np.float64(0).__reduce__()[0]
_NUMBERS: tuple[Any, ...] = (
    np.dtype,
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
    *(type(np.dtype(kind)) for kind in (np.float64, np.float32, np.int64, np.int32, np.bool_)),
)
_SHOWN_KEYS = 5


def read_torch_file(path: Path, where: str, *, mapped: bool = False) -> dict[str, Any]:
    """Read a dictionary of tensors and plain values.

    Args:
        path: of the file.
        where: how messages name it.
        mapped: leave the tensors in the file until they are used; nobody may write into it meanwhile. A file
            of before torch 1.6, which is no archive, is read whole.

    Raises:
        InvalidRequest: it is missing, is no such file, wants code to be run, or holds something else.
    """
    try:
        with torch.serialization.safe_globals(list(_NUMBERS)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other pickles' protocols, which the error says better
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
    # What the reader of a cut-off or foreign file stumbles over.
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{where} must be a file of torch.save, got {_first_line(error)}") from None
    if not isinstance(content, dict):
        raise InvalidRequest(f"{where} must hold a dictionary, got {type(content).__name__}")
    return content


def load_weights(network: torch.nn.Module, state: object, where: str) -> None:
    """Give a network its weights; arguments and errors as :func:`checked_weights`."""
    network.load_state_dict(dict(checked_weights(network, state, where)))


def checked_weights(network: torch.nn.Module, state: object, where: str) -> Mapping[str, torch.Tensor]:
    """Return weights that a network can load.

    Args:
        network: whose keys and shapes the weights must have; may be on the meta device.
        state: tensors by name.
        where: how messages name them.

    Raises:
        InvalidRequest: names the first keys that are missing, unknown, of another shape or not finite.
    """
    shapes = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    return checked_tensors(shapes, state, where, type(network).__name__)


def checked_tensors(
    wanted: Mapping[str, tuple[int, ...]], state: object, where: str, owner: str
) -> Mapping[str, torch.Tensor]:
    """Return tensors that have the wanted names and shapes, all of them and no other.

    Args:
        wanted: shapes by name.
        state: tensors by name.
        where: how messages name them.
        owner: whose keys messages say that these must be.

    Raises:
        InvalidRequest: as :func:`checked_weights`.
    """
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise InvalidRequest(f"{where} must hold tensors by name, got another content")
    problems = []
    if missing := sorted(wanted.keys() - state.keys()):
        problems.append(f"missing keys {', '.join(missing[:_SHOWN_KEYS])}")
    if unknown := sorted(map(str, state.keys() - wanted.keys())):
        problems.append(f"unknown keys {', '.join(unknown[:_SHOWN_KEYS])}")
    for key in sorted(wanted.keys() & state.keys()):
        if tuple(state[key].shape) != wanted[key]:
            problems.append(f"{key} of shape {list(state[key].shape)}, not {list(wanted[key])}")
        elif not bool(torch.isfinite(state[key]).all()):
            problems.append(f"NaN or infinity in {key}")
    if problems:
        shown = "; ".join(problems[:_SHOWN_KEYS])
        raise InvalidRequest(f"{where} must have the keys of {owner}, got {shown}")
    return state


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
