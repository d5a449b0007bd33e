"""Program airimu: whole recordings in, corrected signals out.

It puts the lead-in that the network needs before each recording. Recordings of the same length, from one
request or several, run through the graph together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.airimu.facts import Facts
from slipway_serving.families.airimu.request import CorrectionRequest, Corrections, frames_of
from slipway_serving.protocol.errors import Cancelled, SlipwayError, Unrecoverable
from slipway_serving.protocol.events import tensors
from slipway_serving.protocol.requests import decode
from slipway_serving.runtime.program import BatchOfOne, Call, Models, Settings, Tensors

Array = NDArray[np.float32]


class Corrector(BatchOfOne):
    """Program that answers a :class:`CorrectionRequest` of recordings with :class:`Corrections`."""

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._facts = Facts.read(settings.folder)

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        """Return the corrected recordings of each call, or its error."""
        answers: dict[int, Tensors | SlipwayError] = {}
        accepted: list[tuple[int, CorrectionRequest]] = []
        for index, call in enumerate(calls):
            try:
                accepted.append((index, self._read(call)))
            except SlipwayError as error:
                answers[index] = error
        accepted.sort(key=_length)
        for _, group in groupby(accepted, key=_length):
            indices, recordings = zip(*group, strict=True)
            try:
                results = self._correct(calls[indices[0]].models, recordings)
                answers |= dict(zip(indices, results, strict=True))
            except SlipwayError as error:
                answers |= dict.fromkeys(indices, error)
        return [answers[index] for index in range(len(calls))]

    def close(self) -> None:
        """Do nothing: this program has nothing to free."""

    def _read(self, call: Call) -> CorrectionRequest:
        if call.is_cancelled():
            raise Cancelled(f"{self._model}: cancelled by the caller before it began")
        limits = {"frames": range(1, self._facts.max_frames + 1)}
        return decode(CorrectionRequest, call.tensors, self._model, limits)

    def _correct(self, models: Models, requests: Sequence[CorrectionRequest]) -> Iterator[Tensors]:
        """Run recordings of one length through the graph and return the results of each request."""
        frames = np.concatenate([frames_of(each) for each in requests])
        leads = [self._facts.lead_in(each.initial_rotation, len(each.acc)) for each in requests]
        lead = np.concatenate(leads)
        signals = np.concatenate([lead, frames], axis=1)
        rows = range(0, len(signals), self._facts.max_batch)
        parts = [self._run(models, signals[row : row + self._facts.max_batch]) for row in rows]
        outputs = {name: np.concatenate([part[name] for part in parts]) for name in self._facts.outputs}
        ends = np.cumsum([len(each.acc) for each in requests])[:-1]
        return _split(tensors(corrected(frames, outputs)), ends)

    def _run(self, models: Models, signals: Array) -> dict[str, Array]:
        inputs = {"acc": signals[:, :, :3], "gyro": signals[:, :, 3:]}
        contiguous = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        outputs = models.call(self._facts.model, contiguous, list(self._facts.outputs))
        check_finite(outputs, self._model)
        return outputs


def corrected(frames: Array, outputs: dict[str, Array]) -> Corrections:
    """Apply a network's corrections.

    Args:
        frames: Frames, [batch, frames, 6], acceleration and rate of rotation.
        outputs: Outputs of the graph for these frames: corrections and, if the network has them, variances.
    """
    return Corrections(
        corrected_acc=frames[:, :, :3] + outputs["correction_acc"],
        corrected_gyro=frames[:, :, 3:] + outputs["correction_gyro"],
        **outputs,
    )


def check_finite(outputs: dict[str, Array], where: str) -> None:
    """Refuse outputs of a network that are not finite.

    Raises:
        Unrecoverable: An output contains NaN or infinity.
    """
    if bad := [name for name, array in outputs.items() if not np.isfinite(array).all()]:
        raise Unrecoverable(f"{where}: outputs must be finite, got NaN or infinity in {', '.join(bad)}")


def _length(accepted: tuple[int, CorrectionRequest]) -> int:
    return accepted[1].acc.shape[1]


def _split(outputs: Tensors, ends: NDArray[np.int64]) -> Iterator[Tensors]:
    parts = {name: np.split(array, ends) for name, array in outputs.items()}
    for index in range(len(ends) + 1):
        yield {name: part[index] for name, part in parts.items()}
