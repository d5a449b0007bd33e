"""Devices on which a verification runs PyTorch and ONNX Runtime."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Device(StrEnum):
    """Device on which PyTorch and ONNX Runtime run to verify a graph."""

    CPU = "cpu"
    CUDA = "cuda"

    @property
    def torch(self) -> torch.device:
        """Device as a `torch.device`."""
        import torch

        return torch.device(self.value)

    @property
    def providers(self) -> list[tuple[str, dict[str, Any]]]:
        """Execution providers for ONNX Runtime; CUDA without TF32, in full float32 precision like the CPU."""
        if self is Device.CPU:
            return [("CPUExecutionProvider", {})]
        return [("CUDAExecutionProvider", {"use_tf32": 0}), ("CPUExecutionProvider", {})]
