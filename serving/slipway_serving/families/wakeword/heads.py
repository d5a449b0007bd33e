"""Access to the served heads of wake words: their list, and their answers for embeddings.

The list is read from the repository's folder at each request, so that a word published later is served at
once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.wakeword.words import head_model, word_of
from slipway_serving.protocol.errors import InvalidRequest, NotReady, Unrecoverable
from slipway_serving.runtime.program import Models

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Heads:
    """Heads of a model repository.

    Args:
        repository: Folder of the model repository.
        where: Name of the calling model, for error messages.
    """

    repository: Path
    where: str

    def words(self) -> list[str]:
        """Return the words whose heads are in the repository, loaded or not, sorted."""
        names = sorted(folder.name for folder in self.repository.iterdir() if folder.is_dir())
        return [word for word in map(word_of, names) if word is not None]

    def is_loaded(self, word: str, models: Models) -> bool:
        """Return True if the word's head is loaded."""
        return models.is_ready(head_model(word))

    def loaded_words(self, models: Models) -> list[str]:
        """Return the words whose heads are loaded, sorted."""
        return [word for word in self.words() if self.is_loaded(word, models)]

    def all_words(self, models: Models) -> tuple[str, ...]:
        """Return the words whose heads are loaded, for a request that names none.

        Raises:
            NotReady: No head is loaded.
        """
        if found := self.loaded_words(models):
            return tuple(found)
        raise self.none_loaded()

    def none_loaded(self) -> NotReady:
        """Return the error of a request that names no word while no head is loaded."""
        return NotReady(f"{self.where}: no wake word is loaded; try `slipway export wakeword_head`")

    def score(self, word: str, embeddings: Array, models: Models) -> tuple[Array, Array]:
        """Run a word's head on embeddings, [rows, channels].

        Returns:
            The probability of each row, [rows], 0 to 1, and the word's threshold, [rows].

        Raises:
            InvalidRequest: There is no such word.
            NotReady: The word's head is not loaded (yet).
            Unrecoverable: The head returned NaN or infinity.
        """
        model = head_model(word)
        try:
            answer = models.call(model, {"embedding": embeddings}, ["probability", "threshold"])
        except NotReady:
            if (self.repository / model).is_dir():
                raise NotReady(
                    f"{self.where}: the head of the word {word!r} is not loaded yet; try again"
                ) from None
            known = ", ".join(self.loaded_words(models)) or "none"
            raise InvalidRequest(
                f"{self.where}: word must be a served word, got {word!r}; try one of: {known}"
            ) from None
        probability, threshold = answer["probability"].ravel(), answer["threshold"].ravel()
        if not np.isfinite(probability).all():
            raise Unrecoverable(f"{model}: probability must be finite, got NaN or infinity")
        return probability, threshold
