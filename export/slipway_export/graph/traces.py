"""A folder of traced graphs, for runs that export the same small networks again and again.

Tracing takes most of the time of a small network's export. While the environment variable
:data:`VARIABLE` names a folder, an export writes each traced graph to it, and reads the graph of an equal
network from it. Two networks are equal when their hyperparameters, example inputs and methods are equal, and
the names, shapes and dtypes of their weights, and when the exports ask for the same dynamic dimensions,
operator set and dialect; a graph that was read gets the weights of its network. The comparison does not see
the functions that methods call. A folder is therefore for one run: the tests make one, and so
does ``make matrix``. Every export is verified against PyTorch, also when its graph comes from the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir
from onnx_ir.tensor_adapters import TorchTensor

from slipway_export.spec import Component, Engine

if TYPE_CHECKING:
    import torch

VARIABLE = "SLIPWAY_TRACES"
"""Environment variable that names the folder; without it nothing is kept."""
_LARGEST_BYTES = 64 * 2**20
"""Largest graph that is kept, weights included."""


class Trace:
    """File of one traced graph; there is none without a folder, or if the network is large or not comparable.

    Args:
        component: Description of the network.
        module: The network, before it is changed for its engine.
        inputs: Example inputs by name.
        shapes: Dynamic dimensions of the inputs.
        engine: Engine that the graph is for.
        opset: ONNX operator set version of the trace.
    """

    def __init__(
        self,
        component: Component,
        module: torch.nn.Module,
        inputs: dict[str, Any],
        shapes: dict[str, Any],
        *,
        engine: Engine,
        opset: int,
    ) -> None:
        self._path: Path | None = None
        folder = os.environ.get(VARIABLE)
        if folder is None or _bytes_of(module) > _LARGEST_BYTES:
            return
        sizes = [(tensor.name, tensor.dtype.value, str(tensor.sizes)) for tensor in component.outputs]
        dialect = engine is Engine.ONNXRUNTIME
        changes = component.lower if dialect else component.restate
        settings = (component.graph, str(component.axes), sizes, repr(shapes), dialect, changes, opset)
        pickled = io.BytesIO()
        try:
            _Pickler(pickled, module).dump((settings, inputs, module, _methods(module)))
        except (pickle.PicklingError, AttributeError, TypeError):  # The network contains a local function.
            return
        self._path = Path(folder) / f"{hashlib.sha256(pickled.getvalue()).hexdigest()}.onnx"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let one process at a time trace an equal network; the others wait here for its graph."""
        if self._path is None:
            yield
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # The lock is released when the file is closed or the process ends.
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def kept(self, module: torch.nn.Module) -> ir.Model | None:
        """Return the graph kept from an equal network; None if there is none.

        Args:
            module: The network as it is traced, whose weights the graph gets.
        """
        if self._path is None or not self._path.is_file():
            return None
        model = ir.from_proto(onnx.load(self._path))
        weights = dict(_weights(module))
        for name in weights.keys() & model.graph.initializers.keys():
            model.graph.initializers[name].const_value = TorchTensor(weights[name].detach(), name=name)
        return model

    def keep(self, model: ir.Model) -> None:
        """Keep a graph for the next export of an equal network."""
        if self._path is None:
            return
        staged = self._path.with_suffix(f".{os.getpid()}")
        onnx.save(ir.to_proto(model), staged)
        staged.replace(self._path)


class _Pickler(pickle.Pickler):
    """Pickler that writes weights by their names, other tensors by their values, and any absolute path alike.

    Pickle itself writes a tensor's address in memory and the checkpoint's folder, which differ between equal
    networks.
    """

    def __init__(self, file: io.BytesIO, module: torch.nn.Module) -> None:
        super().__init__(file)
        self._names = {id(tensor): name for name, tensor in _weights(module)}

    def persistent_id(self, thing: Any) -> Any:
        """Return the value that stands for a tensor or a path; None for anything else."""
        import torch

        if isinstance(thing, torch.Tensor):
            if (name := self._names.get(id(thing))) is not None:
                return (name, str(thing.dtype), tuple(thing.shape))
            values = thing.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            return (str(thing.dtype), tuple(thing.shape), hashlib.sha256(values).hexdigest())
        is_path = isinstance(thing, PurePath) or (isinstance(thing, str) and thing.startswith("/"))
        return "path" if is_path else None


def _methods(module: torch.nn.Module) -> list[tuple[object, ...]]:
    """Return the code of all methods of a network's classes, since a test may have replaced one."""
    classes = {each for part in module.modules() for each in type(part).__mro__}
    found = [
        (owner.__qualname__, name, *_code(method.__code__))
        for owner in classes
        for name, method in vars(owner).items()
        if isinstance(method, FunctionType)
    ]
    return sorted(found, key=repr)


def _code(code: CodeType) -> tuple[object, ...]:
    constants = [_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return (code.co_code, code.co_names, constants)


def _weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the tensor of each parameter and buffer; a tied weight has several names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _bytes_of(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
