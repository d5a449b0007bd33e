"""The heads of words, as the models before them ask: which there are, and what one says of embeddings.

Which there are is seen in the repository's folder at each request, so that a word published later is served
at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway_serving.errors import InvalidRequest, NotReady, Unrecoverable
from slipway_serving.program import Models
from slipway_serving.wakeword.words import head_model, word_of

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Heads:
    """The heads of a repository.

    Args:
        repository: the model repository, a folder.
        where: the model that asks, for errors.
    """

    repository: Path
    where: str

    def loaded(self, models: Models) -> list[str]:
        """Return the words whose heads are loaded, sorted."""
        names = sorted(folder.name for folder in self.repository.iterdir() if folder.is_dir())
        words = [(word_of(name), name) for name in names]
        return [word for word, name in words if word is not None and models.is_ready(name)]

    def every(self, models: Models) -> tuple[str, ...]:
        """Return the words whose heads are loaded, for a request that names none.

        Raises:
            NotReady: there is none.
        """
        if found := self.loaded(models):
            return tuple(found)
        raise NotReady(f"{self.where}: a word must be loaded, got none; try slipway export wakeword_head")

    def ask(self, word: str, embeddings: Array, models: Models) -> tuple[Array, Array]:
        """Ask a word's head about embeddings, [rows, channels].

        Returns:
            The probability of each row, [rows], 0 to 1, and the word's threshold, [rows].

        Raises:
            InvalidRequest: there is no such word.
            NotReady: its head is not loaded (yet).
            Unrecoverable: the head gave no number.
        """
        model = head_model(word)
        try:
            answer = models.call(model, {"embedding": embeddings}, ["probability", "threshold"])
        except NotReady:
            if (self.repository / model).is_dir():
                raise NotReady(
                    f"{self.where}: word must be loaded, got {word!r}, whose head is not ready; try again"
                ) from None
            known = ", ".join(self.loaded(models)) or "none"
            raise InvalidRequest(
                f"{self.where}: word must be a served one, got {word!r}; try one of: {known}"
            ) from None
        probability, threshold = answer["probability"].ravel(), answer["threshold"].ravel()
        if not np.isfinite(probability).all():
            raise Unrecoverable(f"{model}: probability must be finite, got NaN or infinity")
        return probability, threshold
