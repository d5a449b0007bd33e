"""The program wakeword_features: clips in, the backbone's features and the clips' loudness out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipway_serving.errors import InvalidRequest, SlipwayError
from slipway_serving.events import tensors
from slipway_serving.program import Call, Settings, Single, Tensors
from slipway_serving.requests import decode
from slipway_serving.wakeword.audio import Extractor
from slipway_serving.wakeword.request import ClipFeatures, FeaturesRequest


class WakewordFeatures(Single):
    """Makes features with the checkpoint's own ``preprocessor_config.json``, which lies beside the model.

    Answers a :class:`FeaturesRequest` with :class:`ClipFeatures`, [batch, max_length, num_mel_bins].
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
        made = self._extract.of_clips(decode(FeaturesRequest, call.tensors, self._model))
        return tensors(
            ClipFeatures(
                input_values=np.stack([features.input_values for features in made]),
                rms=np.array([[features.rms] for features in made], np.float32),
            )
        )

    def close(self) -> None:
        """Nothing is held."""
