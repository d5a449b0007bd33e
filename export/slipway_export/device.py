"""Where both sides of a verification run."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Device(StrEnum):
    """What PyTorch and ONNX Runtime verify a graph on."""

    CPU = "cpu"
    CUDA = "cuda"

    @property
    def torch(self) -> torch.device:
        """The device for PyTorch."""
        import torch

        return torch.device(self.value)

    @property
    def providers(self) -> list[tuple[str, dict[str, Any]]]:
        """ONNX Runtime's execution providers; CUDA in whole float32, as the CPU computes."""
        if self is Device.CPU:
            return [("CPUExecutionProvider", {})]
        return [("CUDAExecutionProvider", {"use_tf32": 0}), ("CPUExecutionProvider", {})]
