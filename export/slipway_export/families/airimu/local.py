"""Local execution of AirIMU: an exported graph in ONNX Runtime, or a checkpoint in PyTorch.

Both correct one window in the same way as the served model, so that each can be compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.airimu.facts import FACTS_FILE, Facts
from slipway_serving.protocol.errors import InvalidRequest

Signal = NDArray[np.float32]
Correct = Callable[[Signal, Signal, Signal], dict[str, Signal]]


def by_onnx(graph: Path) -> Correct:
    """Return a function that corrects a window with an exported graph.

    Args:
        graph: Path `REPOSITORY/airimu_codenet/1/model.onnx`; the repository must also contain the model
            airimu.

    Raises:
        InvalidRequest: The graph does not exist or cannot be loaded.
    """
    import onnxruntime

    try:
        facts = Facts.read(graph.resolve().parents[2] / "airimu" / "1")
        session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's own have no common base
        raise InvalidRequest(
            "onnx must be REPOSITORY/airimu_codenet/1/model.onnx of a repository that has"
            f" airimu/1/{FACTS_FILE}, got {graph} ({error})"
        ) from None
    names = [output.name for output in session.get_outputs()]
    return _padded(facts, lambda inputs: dict(zip(names, session.run(names, inputs), strict=True)))


def by_torch(checkpoint: str, files: Mapping[str, Path] | None = None) -> Correct:
    """Return a function that corrects a window with a checkpoint's network, in float32.

    Args:
        checkpoint: Preset, folder, or hub id.
        files: Configuration and weight files by role, instead of a checkpoint.

    Raises:
        InvalidRequest: The checkpoint does not exist or is not valid.
    """
    import torch

    from slipway_export.checkpoint.axes import axes_of
    from slipway_export.checkpoint.opening import open_checkpoint
    from slipway_export.families.airimu.family import FAMILY, facts_of
    from slipway_export.families.airimu.network import Whole, load_network

    with open_checkpoint(FAMILY, checkpoint, files=files) as opened:
        facts = facts_of(opened, axes_of(FAMILY, opened, {}))
        network = Whole(load_network(opened.path, opened.source))

    def run(inputs: dict[str, Signal]) -> dict[str, Signal]:
        with torch.no_grad():
            outputs = network(*(torch.from_numpy(array) for array in inputs.values()))
        return {name: output.numpy() for name, output in zip(facts.outputs, outputs, strict=True)}

    return _padded(facts, run)


def _padded(facts: Facts, run: Callable[[dict[str, Any]], dict[str, Signal]]) -> Correct:
    def correct_window(acc: Signal, gyro: Signal, rotation: Signal) -> dict[str, Signal]:
        lead = facts.lead_in(rotation[None], 1)[0]
        rows = np.concatenate([lead, np.hstack([acc, gyro])])[None]
        inputs = {"acc": np.ascontiguousarray(rows[:, :, :3]), "gyro": np.ascontiguousarray(rows[:, :, 3:])}
        return {name: output[0] for name, output in run(inputs).items()}

    return correct_window
