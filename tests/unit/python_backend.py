"""What Triton's Python backend hands to a model, as records that keep what they are given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

FINAL = 1


class BackendError(Exception):
    """Stands for the exception of the Python backend's module."""


@dataclass
class Series:
    """One series of a metric: its name, its labels and what it was told."""

    name: str
    labels: Mapping[str, str]
    value: float = 0.0

    def increment(self, amount: float) -> None:
        self.value += amount

    def set(self, value: float) -> None:
        self.value = value


@dataclass
class Response:
    """A response, as the adapter makes it."""

    output_tensors: list[Any] = field(default_factory=list)
    error: Any = None

    @property
    def tensors(self) -> dict[str, Any]:
        return {tensor.name: tensor.array.tolist() for tensor in self.output_tensors}


class Backend:
    """What the Python backend's module gives, as records."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
    TRITONSERVER_MEMORY_CPU = "cpu"
    TritonModelException = BackendError
    InferenceResponse = Response

    @dataclass(frozen=True)
    class Tensor:
        name: str
        array: np.ndarray

    @dataclass(frozen=True)
    class TritonError:
        text: str
        code: str
        INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL, UNKNOWN = (
            "invalid",
            "unavailable",
            "cancelled",
            "internal",
            "?",
        )

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.series: list[Series] = []
        self.Logger = SimpleNamespace(
            log_info=lambda line: self.lines.append(json.loads(line)),
            log_error=lambda line: self.lines.append({"is_error": True, **json.loads(line)}),
            log_warn=self.warnings.append,
        )
        made = self.series

        class Family:
            COUNTER, GAUGE, HISTOGRAM = range(3)

            def __init__(self, name: str, description: str, kind: int) -> None:
                self.name = name

            def Metric(self, labels: Mapping[str, str]) -> Series:  # noqa: N802 - the module's name
                made.append(Series(self.name, labels))
                return made[-1]

        self.MetricFamily = Family

    def value(self, name: str) -> list[float]:
        return [series.value for series in self.series if series.name == name]


class Request:
    """A request as Triton hands it over; keeps what is sent in answer to it."""

    def __init__(self, given: Any = "x", **more: Any) -> None:
        self._tensors = {"x": np.array([given])} if not isinstance(given, dict) else given
        self._more = more
        self.sent: list[tuple[Response | None, int]] = []

    def request_id(self) -> str:
        return str(self._more.get("id", "mine"))

    def parameters(self) -> str:
        found = self._more.get("parameters")
        return "" if found is None else json.dumps(found)

    def timeout(self) -> int:
        return int(self._more.get("timeout", 0))

    def flags(self) -> int:
        return int(self._more.get("flags", 0))

    def correlation_id(self) -> int | str:
        found: int | str = self._more.get("session", 0)
        return found

    def inputs(self) -> list[Any]:
        def tensor(name: str, array: np.ndarray) -> Any:
            return SimpleNamespace(name=lambda: name, as_numpy=lambda: array)

        return [tensor(name, array) for name, array in self._tensors.items()]

    def is_cancelled(self) -> bool:
        return bool(self._more.get("cancelled", False))

    def trace(self) -> Any:
        return SimpleNamespace(get_context=lambda: self._more.get("trace"))

    def get_response_sender(self) -> Any:
        def send(response: Response | None = None, flags: int = 0) -> None:
            self.sent.append((response, flags))

        return SimpleNamespace(send=send)
