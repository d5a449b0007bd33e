"""Calls of one served model to another, through Triton's Python backend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slipway_serving.protocol.errors import NotReady
from slipway_serving.runtime.triton_models import EndedStreams, TritonModels


class Answer:
    """A response of the backend without an error."""

    def __init__(self, **outputs: float) -> None:
        self._outputs = outputs

    def has_error(self) -> bool:
        return False

    def output_tensors(self) -> list[Any]:
        return [
            SimpleNamespace(name=lambda name=name: name, as_numpy=lambda value=value: np.array([value]))
            for name, value in self._outputs.items()
        ]


def models(answer: Answer) -> TritonModels:
    """Models that give an answer to every call."""
    backend = SimpleNamespace(
        InferenceRequest=lambda **_: SimpleNamespace(exec=lambda: answer),
        Tensor=lambda name, array: (name, array),
        PreferredMemory=lambda kind: kind,
        TRITONSERVER_MEMORY_CPU=0,
    )
    request = SimpleNamespace(trace=lambda: None, is_cancelled=lambda: False)
    return TritonModels(backend, "1", request, EndedStreams())


def test_answer_has_the_outputs_that_were_asked_for() -> None:
    found = models(Answer(mean=1.0, rest=2.0)).call("statistics", {}, ["mean"])
    assert found["mean"].tolist() == [1.0]


def test_call_is_not_ready_when_the_process_ended_before_its_outputs() -> None:
    """Triton then answers without an error and without outputs."""
    with pytest.raises(NotReady, match="the answer must have mean, rest, got none of rest, since"):
        models(Answer(mean=1.0)).call("statistics", {}, ["mean", "rest"])
