"""Options of a component that PyTorch runs, as an export writes them to the model's configuration.

This module checks the rules that depend on the options and the kind of device alone, so that an export
refuses at its start what a server would refuse when it loads the model. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from slipway_serving.protocol.errors import raise_all

PRECISIONS = ("fp64", "fp32", "fp16", "bf16")
"""Precisions of the arithmetic."""
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""Modes of ``torch.compile``."""
GRAPHED_MODES = ("reduce-overhead", "max-autotune")
"""Modes of ``torch.compile`` that replay CUDA graphs of their own."""
SDPA = "sdpa"
"""Name of torch's own attention function."""
# Attention backends of diffusers that torch supports on a CPU.
_CPU_ATTENTION = (SDPA, "native", "_native_math")


class Weights(StrEnum):
    """Format of a network's weights.

    ``bf16``: All weights and the arithmetic are bfloat16, except for what the network keeps in float32.
    ``fp8``: The weights of linear layers are float8 (e4m3) with a scale per row, and their inputs are
    quantized to float8 in each run. ``int8`` and ``int4``: The weights of linear layers are integers with a
    scale per row (int8) or per group of 32 (int4); the arithmetic has the given precision.
    """

    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def is_quantized(self) -> bool:
        """True if torchao quantizes the weights when the network is loaded."""
        return self is not Weights.BF16


class Offload(StrEnum):
    """Part of a network that leaves the GPU while unused: nothing, all of it between requests, each layer."""

    NONE = "none"
    MODEL = "model"
    LAYERS = "layers"


@dataclass(frozen=True)
class TorchOptions:
    """Options of a component that PyTorch runs.

    Args:
        precision: Precision of the arithmetic, one of :data:`PRECISIONS`.
        weights: Format of the weights; None keeps them in the precision.
        compile: Mode of ``torch.compile``; None runs the network eagerly.
        attention: Backend of diffusers' attention dispatcher, or ``sdpa``; None keeps the network's own.
        cuda_graphs: True to record a CUDA graph for each shape of the inputs and replay it.
        offload: Part of the network that leaves the GPU while it is not needed.
    """

    precision: str = "fp32"
    weights: Weights | None = None
    compile: str | None = None
    attention: str | None = None
    cuda_graphs: bool = False
    offload: Offload = Offload.NONE

    @property
    def load_precision(self) -> str:
        """Precision that the network is loaded in."""
        return "bf16" if self.weights is Weights.BF16 else self.precision

    @property
    def summary(self) -> str:
        """Text for reports, e.g. ``fp32, int8 weights, compiled (default)``."""
        parts = [self.load_precision]
        if self.weights is not None and self.weights.is_quantized:
            parts.append(f"{self.weights.value} weights")
        if self.attention is not None:
            parts.append(f"{self.attention} attention")
        parts.append("eager" if self.compile is None else f"compiled ({self.compile})")
        if self.cuda_graphs:
            parts.append("CUDA graphs")
        if self.offload is not Offload.NONE:
            parts.append(f"offload {self.offload.value}")
        return ", ".join(parts)

    def parameters(self) -> dict[str, str]:
        """Return the options as parameters of a model's configuration, without those that are None."""
        values = {
            "precision": self.precision,
            "weights": self.weights,
            "compile": self.compile,
            "attention": self.attention,
            "cuda_graphs": "true" if self.cuda_graphs else "false",
            "offload": self.offload,
        }
        return {name: str(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_parameters(cls, model: str, parameters: Mapping[str, str]) -> TorchOptions:
        """Read the options from the parameters of a model's configuration.

        Raises:
            InvalidRequest: A parameter cannot be read; the message names every such parameter.
        """
        allowed: dict[str, tuple[str, ...]] = {
            "precision": PRECISIONS,
            "weights": tuple(Weights),
            "compile": COMPILE_MODES,
            "cuda_graphs": ("true", "false"),
            "offload": tuple(Offload),
        }
        raise_all(
            model,
            [
                f"parameter {name} of config.pbtxt must be one of {', '.join(values)}, got"
                f" {parameters[name]!r}"
                for name, values in allowed.items()
                if name in parameters and parameters[name] not in values
            ],
        )
        weights = parameters.get("weights")
        return cls(
            precision=parameters.get("precision", cls.precision),
            weights=None if weights is None else Weights(weights),
            compile=parameters.get("compile"),
            attention=parameters.get("attention"),
            cuda_graphs=parameters.get("cuda_graphs") == "true",
            offload=Offload(parameters.get("offload", Offload.NONE)),
        )

    def problems(self, name: str, *, on_gpu: bool) -> list[str]:
        """Return the problems of options that conflict with each other or with the kind of device.

        Args:
            name: Name of the component, for messages.
            on_gpu: True if the model's instances run on GPUs.
        """
        return [
            *self._value_problems(name),
            *self._device_problems(name, on_gpu),
            *self._conflict_problems(name),
        ]

    def _value_problems(self, name: str) -> list[str]:
        """Return the problems of single values."""
        problems = []
        if self.precision not in PRECISIONS:
            problems.append(
                f"precision of {name} must be one of {', '.join(PRECISIONS)} for engine torch, got"
                f" {self.precision}; try --weights int8, fp8 or int4 for quantized weights"
            )
        if self.compile is not None and self.compile not in COMPILE_MODES:
            problems.append(
                f"compile of {name} must be one of {', '.join(COMPILE_MODES)}, got {self.compile}"
            )
        return problems

    def _device_problems(self, name: str, on_gpu: bool) -> list[str]:
        """Return the problems of options that the kind of device does not support."""
        if on_gpu:
            if self.weights is Weights.INT4 and self.precision != "bf16":
                return [
                    f"precision of {name} must be bf16 with weights int4 on a GPU, got {self.precision}; try"
                    f" --precision {name}=bf16"
                ]
            return []
        rule = f"must be left out where {name} runs on a CPU"
        fix = f"; try --place {name}=gpu"
        problems = []
        if self.weights is Weights.FP8:
            problems.append(f"weights {rule}, which cannot multiply float8, got fp8{fix}, or int8")
        if self.cuda_graphs:
            problems.append(f"cuda-graphs {rule}, got them{fix}")
        if self.offload is not Offload.NONE:
            problems.append(
                f"offload {rule}, since it moves weights off a GPU, got {self.offload.value}{fix}"
            )
        if self.attention is not None and self.attention not in _CPU_ATTENTION:
            problems.append(
                f"attention of {name} must be one of {', '.join(_CPU_ATTENTION)} on a CPU, got"
                f" {self.attention}{fix}"
            )
        if self.compile in GRAPHED_MODES:
            problems.append(
                f"compile of {name} must be a mode without CUDA graphs on a CPU, got {self.compile}{fix},"
                " or default"
            )
        return problems

    def _conflict_problems(self, name: str) -> list[str]:
        """Return the problems of options that exclude each other."""
        problems = []
        if self.weights is Weights.BF16 and self.precision not in ("fp32", "bf16"):
            problems.append(
                f"weights of {name} must be left out with precision {self.precision}, got bf16, which is a"
                " precision too"
            )
        if self.weights is Weights.FP8 and self.precision != "bf16":
            problems.append(
                f"precision of {name} must be bf16 with weights fp8, got {self.precision}; try --precision"
                f" {name}=bf16"
            )
        if self.cuda_graphs and self.compile is not None:
            problems.append(
                f"cuda-graphs must be given without compile for {name}, got both; try --compile"
                " reduce-overhead"
            )
        if self.offload is not Offload.NONE and self.weights is Weights.INT4:
            problems.append(
                f"offload of {name} must be none with weights int4, whose packing depends on the device, got"
                f" {self.offload.value}; try --weights {name}=int8"
            )
        if self.offload is not Offload.NONE and (self.cuda_graphs or self.compile in GRAPHED_MODES):
            problems.append(
                f"offload of {name} must be none with CUDA graphs, which need weights at fixed addresses, got"
                f" {self.offload.value}; try --compile default"
            )
        return problems
