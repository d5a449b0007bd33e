"""Networks of an authored model that PyTorch runs in place of graphs: the same to what runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.backends.onnxruntime.signature import GraphTensor, Signature
from slipway_serving.runtime.dlpack import tensor_of, value_of
from slipway_serving.runtime.graph import Graph
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.stepped import SteppedModel
from slipway_serving.runtime.torch_engine.network import Network


class Sum(nn.Module):
    """sample = value + cache, next cache = sample, as a part of what was computed; the first has no cache."""

    def forward(self, value: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        sample = value if cache is None else value + cache
        return sample, torch.stack([sample, sample])[0]


def load(file: Path, precision: str) -> Network:
    assert precision == "fp32"

    def tensors(*names: str) -> dict[str, GraphTensor]:
        return {name: GraphTensor(name, "tensor(float)", (1, "size")) for name in names}

    inputs = tensors("value", *(("cache",) if file.name == "next.network.json" else ()))
    return Network(Sum(), Signature(inputs, {}, tensors("sample", "next_cache")), frozenset())


def settings(folder: Path, **options: str) -> Settings:
    for graph in ("first", "next"):
        warmup = {"value": [1, 3]} | ({"cache": [1, 3]} if graph == "next" else {})
        described = {"network": f"{__name__}:load", "options": options, "warmup": warmup}
        (folder / f"{graph}.torch.json").write_text(json.dumps(described))
    return Settings("sums", folder, {"name": "sums"})


def ones(size: int = 3) -> dict[str, np.ndarray[Any, Any]]:
    return {"value": np.ones((1, size), np.float32)}


def test_steps_carry_their_state_when_pytorch_runs_them(tmp_path: Path) -> None:
    model = SteppedModel(settings(tmp_path))
    assert model.caches == {"cache": (1, 1)}
    state = None
    for step in range(1, 5):
        outputs, state = model.step(ones(), state)
        assert outputs["sample"].tolist() == [[step] * 3]
        assert isinstance(state["cache"], ort.OrtValue)
    _, moved = model.step(ones(), model.to_device({"cache": state["cache"].numpy()}))
    assert moved["cache"].numpy().tolist() == [[5] * 3]


def test_graph_says_what_its_file_would_when_pytorch_runs_it(tmp_path: Path) -> None:
    graph = Graph(settings(tmp_path), "next.onnx")
    assert (graph.inputs, graph.outputs) == (("value", "cache"), ("sample", "next_cache"))
    assert (graph.ranks, graph.shape("cache")) == ({"value": 2, "cache": 2}, (1, 1))
    given = graph.run({**ones(1), **graph.zeros(["cache"])}, in_memory=["sample"], wanted=["sample"])
    assert {name: value.numpy().tolist() for name, value in given.items()} == {"sample": [[1]]}


def test_state_is_not_copied_and_holds_nothing_else(tmp_path: Path) -> None:
    graph = Graph(settings(tmp_path), "next.onnx")
    cache = graph.to_device(np.ones((1, 3), np.float32))
    left = graph.run({**ones(), "cache": cache})["next_cache"]
    seen = tensor_of(left)
    assert seen.data_ptr() == left.data_ptr()
    # What is computed is twice as large, of which a part is carried on.
    assert seen.untyped_storage().nbytes() == seen.nbytes
    assert cache.numpy().tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_memory_is_shared_both_ways(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    value = value_of(tensor)
    assert value.numpy().tolist() == tensor.tolist()
    again = tensor_of(value)
    assert (again.dtype, again.data_ptr()) == (dtype, tensor.data_ptr())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": "fp8", "precision": "bf16"}, "weights must be left out where sums/first runs on a CPU"),
        ({"precision": "fp12"}, "sums/first: parameter precision of config.pbtxt must be one of"),
    ],
)
def test_network_is_refused_when_it_cannot_run_so(tmp_path: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        SteppedModel(settings(tmp_path, **options))


def test_network_is_refused_when_its_compiler_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sum, "forward", lambda *_: torch.zeros(2, 3) @ torch.zeros(2, 3))
    with pytest.raises(InvalidRequest, match="sums/first: the network must run at its warm-up sizes before"):
        SteppedModel(settings(tmp_path, compile="default"))
