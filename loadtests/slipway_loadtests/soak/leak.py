"""Model that leaks on purpose: the positive control of a soak test, which must detect it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_loadtests.soak.workload import Ask, Kind, not_a_number
from slipway_serving.protocol.events import Event, output_field
from slipway_serving.protocol.fields import Array
from slipway_serving.protocol.requests import Request, decode
from slipway_serving.runtime.program import Call, Responses, Settings

MODEL = "leaking"
_VALUES = 64 * 1024
_CONFIG = f"""
backend: "python"
input [ {{ name: "values" data_type: TYPE_FP32 dims: [-1] }} ]
output [ {{ name: "mean" data_type: TYPE_FP32 dims: [1] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "program" value {{ string_value: "{__name__}:Leaking" }} }}
"""
_ADAPTER = """
import triton_python_backend_utils as pb_utils

from slipway_serving.adapter import model_class

TritonPythonModel = model_class(pb_utils)
"""


@dataclass(frozen=True)
class Mean(Event):
    """Answer to :class:`KeepRequest`."""

    mean: Annotated[float, output_field("mean of the values")]


@dataclass(frozen=True, eq=False)
class KeepRequest(Request):
    """Values that the model keeps forever, 256 KiB of them."""

    model: ClassVar[str] = MODEL
    events: ClassVar[tuple[type[Event], ...]] = (Mean,)
    streams: ClassVar[bool] = False

    values: Annotated[NDArray[np.float32], Array("float32", ("values",), "what is kept")]


class Leaking:
    """Program of the leaking model."""

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._kept: list[NDArray[np.float32]] = []

    def run(self, call: Call) -> Responses:
        """Keep the values and answer with their mean."""
        values = decode(KeepRequest, call.tensors, self._model).values
        self._kept.append(values.copy())
        yield {"mean": values.mean(keepdims=True)}

    def close(self) -> None:
        """Release the kept values."""
        self._kept.clear()


def _make(seed: int) -> Ask:
    values = np.random.default_rng(seed).standard_normal(_VALUES, np.float32)
    return Ask(KeepRequest(values))


KIND = Kind(MODEL, 4, _make, {"values": not_a_number})


def stage(repository: Path, folder: Path) -> Path:
    """Return a repository with the same models and the leaking one.

    Args:
        repository: Folder of the models, to which the new repository links.
        folder: Folder that receives the new repository.
    """
    staged = folder / "models"
    version = staged / MODEL / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_ADAPTER, encoding="utf-8")
    (staged / MODEL / "config.pbtxt").write_text(_CONFIG, encoding="utf-8")
    for model in repository.resolve().iterdir():
        if model.is_dir():
            (staged / model.name).symlink_to(model, target_is_directory=True)
    return staged
