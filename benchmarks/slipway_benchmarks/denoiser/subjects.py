"""Subjects of the denoiser benchmark: the same weights behind the common interface of served models.

PyTorch eager is diffusers' own network unchanged; `torch.compile` compiles that same object; an ONNX graph
runs in :class:`slipway_serving.runtime.in_process.InProcessModels`, with the session and the checks of the
served backend. The denoising loop of the served pipeline can drive any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slipway_serving.protocol.turns import NO_SESSION, Turn
from slipway_serving.runtime.in_process import Answer
from slipway_serving.runtime.program import Tensors

EAGER = "eager"
COMPILED = "torch.compile"


def graph_name(precision: str) -> str:
    """Return the name of a precision's graph in reports."""
    return f"onnx {precision}"


class TorchDenoiser:
    """PyTorch denoiser that implements :class:`slipway_serving.runtime.program.Models` for its one model.

    Args:
        network: Module with the call signature of diffusers' ``WanTransformer3DModel``.
    """

    def __init__(self, network: Any) -> None:
        self.network = network

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> Answer:
        """Run the network with the interface of the served denoiser."""
        timestep = np.asarray(tensors["timestep"]).reshape(-1)
        with torch.no_grad():
            sample = self.network(
                torch.from_numpy(tensors["hidden_states"]),
                torch.from_numpy(timestep),
                torch.from_numpy(tensors["encoder_hidden_states"]),
                return_dict=False,
            )[0]
        return dict.fromkeys(outputs, sample.numpy())

    def is_ready(self, model: str) -> bool:
        """Return True, because the network is always loaded."""
        return True

    def stream(
        self,
        model: str,
        tensors: Tensors,
        outputs: list[str],
        *,
        turn: Turn = NO_SESSION,
    ) -> Iterator[Answer]:
        """Yield the only answer."""
        yield self.call(model, tensors, outputs)


def eager(checkpoint: Path) -> TorchDenoiser:
    """Return the diffusers denoiser of a checkpoint, float32."""
    from diffusers import WanTransformer3DModel

    network = WanTransformer3DModel.from_pretrained(
        checkpoint / "transformer", torch_dtype=torch.float32, local_files_only=True
    )
    return TorchDenoiser(network.eval().requires_grad_(False))


def compiled(denoiser: TorchDenoiser) -> TorchDenoiser:
    """Return the same denoiser with torch.compile's default options; its first call compiles it."""
    return TorchDenoiser(torch.compile(denoiser.network))
