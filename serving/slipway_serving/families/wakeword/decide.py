"""The program wakeword_decide, which decides from clips and their embeddings whether words were said.

It checks the clips, since the graphs before it accept any samples. Those graphs do not resample, so the
program recomputes the embedding of a clip at another rate than 16 kHz. All rows of a batch that request a
word go to its head in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slipway_serving.families.wakeword.audio import Extractor
from slipway_serving.families.wakeword.audio_limits import is_silent
from slipway_serving.families.wakeword.heads import Heads
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ, DecideRequest, Decisions
from slipway_serving.families.wakeword.words import BACKBONE
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError, raise_all, without_traceback
from slipway_serving.protocol.events import tensors
from slipway_serving.protocol.requests import decode
from slipway_serving.runtime.program import BatchOfOne, Call, Models, Settings, Tensors


@dataclass(frozen=True)
class HeadScore:
    """Answer of a head for one embedding."""

    probability: np.float32
    threshold: np.float32


@dataclass(frozen=True)
class CheckedClips:
    """Request of a call, and the words of each of its rows; all rows have the same number of words."""

    request: DecideRequest
    words: list[tuple[str, ...]]


def _extractor(settings: Settings) -> Extractor:
    """Return the feature extractor of a model's folder."""
    try:
        return Extractor(settings.folder)
    except InvalidRequest as error:
        raise InvalidRequest(f"{settings.model}: {error}") from None


class WakewordDecide(BatchOfOne):
    """Program that answers a :class:`DecideRequest` with :class:`Decisions` of the heads.

    The checkpoint's ``preprocessor_config.json`` is in the model's folder.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._heads = Heads(settings.repository, settings.model)
        self._extract = _extractor(settings)

    @staticmethod
    def check_files(settings: Settings) -> None:
        """Check the parameters of the feature extractor, which the export copied."""
        _extractor(settings)

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        """Return the decisions for each call's rows, or the call's error."""
        requests: list[CheckedClips | SlipwayError] = [self._check_clips(call) for call in calls]
        valid = {index: each for index, each in enumerate(requests) if isinstance(each, CheckedClips)}
        rows: dict[str, list[tuple[int, int]]] = {}
        for index, each in valid.items():
            for row, words in enumerate(each.words):
                for word in dict.fromkeys(words):
                    rows.setdefault(word, []).append((index, row))
        scores: dict[tuple[str, int, int], HeadScore] = {}
        errors: dict[str, SlipwayError] = {}
        for word, places in rows.items():
            embeddings = np.stack([valid[index].request.embedding[row] for index, row in places])
            try:
                answers = self._heads.score(word, embeddings, calls[places[0][0]].models)
            except SlipwayError as error:
                errors[word] = without_traceback(error)
            else:
                for place, *answer in zip(places, *answers, strict=True):
                    scores[word, *place] = HeadScore(*answer)
        return [
            self._answer(index, each, scores, errors) if isinstance(each, CheckedClips) else each
            for index, each in enumerate(requests)
        ]

    def close(self) -> None:
        """Do nothing; the program holds no resources."""

    def _check_clips(self, call: Call) -> CheckedClips | SlipwayError:
        """Check the clips of a call and return them with the words of each row, or the call's error."""
        try:
            request = decode(DecideRequest, call.tensors, self._model)
            raise_all(self._model, request.too_long(self._extract.longest_s))
            request = self._reembed(request, call.models)
            if request.words is not None and request.words.shape[1]:
                return CheckedClips(request, [tuple(words) for words in request.words.tolist()])
            words = self._heads.all_words(call.models)
        except SlipwayError as error:
            return error
        return CheckedClips(request, [words] * len(request.rms))

    def _reembed(self, request: DecideRequest, models: Models) -> DecideRequest:
        """Recompute the embeddings of a request's clips at other rates than 16 kHz."""
        rates = request.sample_rate[:, 0]
        rows = np.flatnonzero(rates != SAMPLE_RATE_HZ)
        if not rows.size:
            return request
        features = [self._extract(request.audio[row], int(rates[row])).input_values for row in rows]
        embedding = request.embedding.copy()
        made = models.call(BACKBONE, {"input_values": np.stack(features)}, ["embedding"])
        embedding[rows] = made["embedding"]
        return replace(request, embedding=embedding)

    def _answer(
        self,
        index: int,
        clips: CheckedClips,
        scores: Mapping[tuple[str, int, int], HeadScore],
        errors: Mapping[str, SlipwayError],
    ) -> Tensors | SlipwayError:
        """Return the decisions for one call, or the error of the first word whose head failed."""
        for words in clips.words:
            for word in words:
                if word in errors:
                    return errors[word]
        table = [[scores[word, index, row] for word in words] for row, words in enumerate(clips.words)]
        shape = (len(clips.words), len(clips.words[0]) if clips.words else 0)
        audible = np.array([[not is_silent(float(rms))] for rms in clips.request.rms[:, 0]], np.bool_)
        probability = np.array([[j.probability for j in row] for row in table], np.float32).reshape(shape)
        threshold = np.array([[j.threshold for j in row] for row in table], np.float32).reshape(shape)
        probability = np.where(audible, probability, np.float32(0))
        return tensors(
            Decisions(
                word=np.array(clips.words, np.object_).reshape(shape),
                probability=probability,
                threshold=threshold,
                detected=audible & (probability >= threshold),
            )
        )
