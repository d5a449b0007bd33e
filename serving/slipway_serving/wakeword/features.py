"""The program wakeword_features: clips in, the backbone's features and the clips' loudness out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipway_serving.errors import InvalidRequest, SlipwayError, raise_all
from slipway_serving.program import Call, Settings, Single, Tensors
from slipway_serving.wakeword.audio import Extractor


class WakewordFeatures(Single):
    """Makes features with the checkpoint's own ``preprocessor_config.json``, which lies beside the model.

    Inputs ``audio`` [batch, samples], float32, mono, -1 to 1, and ``sample_rate`` [batch, 1], int64, Hz;
    outputs ``input_values`` [batch, max_length, num_mel_bins] and ``rms`` [batch, 1], float32.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        try:
            self._extract = Extractor(settings.folder)
        except InvalidRequest as error:
            raise InvalidRequest(f"{self._model}: {error}") from None

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        """Return the features of each call's clips, or the rules that they break."""
        answers: list[Tensors | SlipwayError] = []
        for call in calls:
            try:
                answers.append(self._features(call))
            except SlipwayError as error:
                answers.append(error)
        return answers

    def _features(self, call: Call) -> Tensors:
        clips = list(zip(call.tensors["audio"], call.tensors["sample_rate"][:, 0], strict=True))
        broken = [problem for clip, rate in clips for problem in self._extract.problems(clip, int(rate))]
        raise_all(self._model, list(dict.fromkeys(broken)))
        made = [self._extract(clip, int(rate)) for clip, rate in clips]
        return {
            "input_values": np.stack([features.input_values for features in made]),
            "rms": np.array([[features.rms] for features in made], np.float32),
        }

    def close(self) -> None:
        """Nothing is held."""
