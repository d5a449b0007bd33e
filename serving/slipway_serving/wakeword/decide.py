"""The program wakeword_decide: embeddings in, a probability and a decision for each wanted word out.

The rows of all requests of a batch that want a word go to its head in one call. Which words there are is
seen in the repository's folder at each request, so that a word published later is served at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.errors import InvalidRequest, NotReady, SlipwayError, Unrecoverable
from slipway_serving.program import Call, Models, Settings, Single, Tensors
from slipway_serving.wakeword.audio import is_silent
from slipway_serving.wakeword.words import check_word, head_model, word_of

MOST_WORDS = 256


def loaded_words(repository: Path, models: Models) -> list[str]:
    """Return the words whose heads are loaded, sorted.

    Args:
        repository: the model repository, a folder.
        models: the served models.
    """
    names = sorted(folder.name for folder in repository.iterdir() if folder.is_dir())
    words = [(word_of(name), name) for name in names]
    return [word for word, name in words if word is not None and models.is_ready(name)]


def read_words(names: Sequence[Any], repository: Path, models: Models, where: str) -> tuple[str, ...]:
    """Return the words that a request asks for; every loaded one if it names none.

    Args:
        names: UTF-8 bytes each.
        repository: the model repository.
        models: the served models.
        where: the model that was asked.

    Raises:
        InvalidRequest: a name breaks the rule, or there are too many.
        NotReady: every loaded word is wanted and there is none.
    """
    if len(names) > MOST_WORDS:
        raise InvalidRequest(f"{where}: words must be at most {MOST_WORDS}, got {len(names)}; try fewer")
    texts = [bytes(name).decode("utf-8", "replace") for name in names]
    if texts:
        return tuple(check_word(text, where) for text in texts)
    if found := loaded_words(repository, models):
        return tuple(found)
    raise NotReady(f"{where}: a word must be loaded, got none; try slipway export wakeword_head")


@dataclass(frozen=True)
class Judgement:
    """What a head says of one embedding."""

    probability: np.float32
    threshold: np.float32


class WakewordDecide(Single):
    """Asks the heads.

    Inputs ``embedding`` [batch, dim] and ``rms`` [batch, 1], float32, and ``words`` [batch, words], BYTES,
    every loaded word without it; outputs ``word``, ``probability``, ``threshold`` and ``detected``,
    [batch, words] each.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._repository = settings.repository

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        """Return the judgement of each call's rows, or why there is none."""
        asked: list[list[tuple[str, ...]] | SlipwayError] = [self._asked(call) for call in calls]
        rows: dict[str, list[tuple[int, int]]] = {}
        for index, wanted in enumerate(asked):
            for row, words in enumerate(wanted if isinstance(wanted, list) else ()):
                for word in dict.fromkeys(words):
                    rows.setdefault(word, []).append((index, row))
        judged: dict[tuple[str, int, int], Judgement] = {}
        failed: dict[str, SlipwayError] = {}
        for word, places in rows.items():
            embeddings = np.stack([calls[index].tensors["embedding"][row] for index, row in places])
            try:
                answers = self._ask(word, embeddings, calls[places[0][0]].models)
            except SlipwayError as error:
                failed[word] = error
            else:
                judged |= {(word, *place): answer for place, answer in zip(places, answers, strict=True)}
        return [
            wanted if isinstance(wanted, SlipwayError) else self._answer(index, call, wanted, judged, failed)
            for index, (call, wanted) in enumerate(zip(calls, asked, strict=True))
        ]

    def close(self) -> None:
        """Nothing is held."""

    def _asked(self, call: Call) -> list[tuple[str, ...]] | SlipwayError:
        try:
            asked = [
                read_words(names, self._repository, call.models, self._model)
                for names in call.tensors.get("words", np.zeros((len(call.tensors["rms"]), 0), np.object_))
            ]
        except SlipwayError as error:
            return error
        if len({len(words) for words in asked}) > 1:
            return InvalidRequest(
                f"{self._model}: words must be equally many for each clip of a request, got"
                f" {', '.join(str(len(words)) for words in asked)}; try one request for each clip"
            )
        return asked

    def _ask(self, word: str, embeddings: NDArray[np.float32], models: Models) -> list[Judgement]:
        """Ask a word's head about embeddings [rows, dim].

        Raises:
            InvalidRequest: there is no such word.
            NotReady: its head is not loaded (yet).
            Unrecoverable: the head gave no number.
        """
        model = head_model(word)
        try:
            answer = models.call(model, {"embedding": embeddings}, ["probability", "threshold"])
        except NotReady:
            if (self._repository / model).is_dir():
                raise NotReady(
                    f"{self._model}: word must be loaded, got {word!r}, whose head is not ready; try again"
                ) from None
            known = ", ".join(loaded_words(self._repository, models)) or "none"
            raise InvalidRequest(
                f"{self._model}: word must be a served one, got {word!r}; try one of: {known}"
            ) from None
        probability, threshold = answer["probability"].ravel(), answer["threshold"].ravel()
        if not np.isfinite(probability).all():
            raise Unrecoverable(f"{model}: probability must be finite, got NaN or infinity")
        return [Judgement(*pair) for pair in zip(probability, threshold, strict=True)]

    def _answer(
        self,
        index: int,
        call: Call,
        wanted: Sequence[tuple[str, ...]],
        judged: Mapping[tuple[str, int, int], Judgement],
        failed: Mapping[str, SlipwayError],
    ) -> Tensors | SlipwayError:
        for words in wanted:
            for word in words:
                if word in failed:
                    return failed[word]
        table = [[judged[word, index, row] for word in words] for row, words in enumerate(wanted)]
        shape = (len(wanted), len(wanted[0]) if wanted else 0)
        heard = np.array([[not is_silent(float(rms))] for rms in call.tensors["rms"][:, 0]], np.bool_)
        probability = np.array([[j.probability for j in row] for row in table], np.float32).reshape(shape)
        threshold = np.array([[j.threshold for j in row] for row in table], np.float32).reshape(shape)
        probability = np.where(heard, probability, np.float32(0))
        return {
            "word": np.array([[w.encode() for w in words] for words in wanted], np.object_).reshape(shape),
            "probability": probability,
            "threshold": threshold,
            "detected": heard & (probability >= threshold),
        }
