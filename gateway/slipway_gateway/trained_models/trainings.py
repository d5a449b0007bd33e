"""Trainings of words on recordings that callers send, one after the other.

Each runs `slipway train wakeword` in a process of its own, which also exports the word and lets the server
load it. The recordings stay beside the trained models, so that a word can be trained again. The running
process ends with this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from slipway_export.trained_models import Library, UnknownModel
from slipway_gateway.trained_models.exports import Busy
from slipway_serving.protocol.errors import Overloaded

POSITIVE, NEGATIVE = "positive", "negative"
_RECORDINGS = "recordings"
_ERROR = "error: "
_LONGEST_ERROR = 2000


class TrainingState(StrEnum):
    """State of a word's training since this process started."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Training:
    """A training.

    Attributes:
        word: Id of the word.
        state: State.
        error: Reason why it failed; None if it has not.
    """

    word: str
    state: TrainingState
    error: str | None = None


@dataclass(frozen=True)
class TrainingSettings:
    """What every training is called with.

    Attributes:
        backbone: Checkpoint of the backbone: a preset or a folder.
        models: Folder of the trained models.
        repository: Model repository that receives the words.
        control: HTTP address of the server that loads them; None loads none.
        control_token_file: File with the token that this server requires.
        program: Program in front of the arguments.
    """

    backbone: str
    models: Path
    repository: Path
    control: str | None = None
    control_token_file: Path | None = None
    program: Sequence[str] = (sys.executable, "-m", "slipway_cli")

    def command(self, word: str, recordings: Path) -> list[str]:
        """Return the command that trains a word.

        Args:
            word: Id of the word.
            recordings: Folder with the folders of both kinds.
        """
        options: dict[str, object] = {
            "--name": word,
            "--positive": recordings / POSITIVE,
            "--negative": recordings / NEGATIVE,
            "--backbone": self.backbone,
            "--models": self.models.resolve(),
            "--repository": self.repository.resolve(),
        }
        if self.control is not None:
            options["--triton"] = self.control
        if self.control_token_file is not None:
            options["--control-token-file"] = self.control_token_file.resolve()
        flat = [str(part) for option in options.items() for part in option]
        return [*self.program, "train", "wakeword", *flat, "--force", "--quiet"]


class Trainings:
    """Queue of trainings, for one event loop.

    Args:
        settings: Settings of every training.
        limit_s: Longest time for one training, in seconds.
        most_waiting: Largest number of trainings that wait or run.
    """

    def __init__(self, settings: TrainingSettings, limit_s: float = 1800.0, most_waiting: int = 8) -> None:
        self._settings, self._limit_s, self._most_waiting = settings, limit_s, most_waiting
        self._known: dict[str, Training] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    def find(self, word: str) -> Training | None:
        """Return the last training of a word since this process started; None if there was none."""
        return self._known.get(word)

    def begin(self, word: str, recordings: Mapping[str, Sequence[tuple[str, bytes]]]) -> Training:
        """Store recordings, and put the training into the queue.

        Args:
            word: Id of the word.
            recordings: Endings and contents of the files, by kind.

        Raises:
            InvalidRequest: The word is not a valid id.
            Busy: The word is being trained.
            Overloaded: Too many trainings wait.
        """
        with contextlib.suppress(UnknownModel):  # a new word; what is no valid id is refused
            Library(self._settings.models).find(word)
        known = self._known.get(word)
        if known is not None and known.state in (TrainingState.QUEUED, TrainingState.RUNNING):
            raise Busy(f"train: {word} is being trained ({known.state.value}); try again later")
        if len(self._tasks) >= self._most_waiting:
            raise Overloaded(
                f"train: the queue is full ({self._most_waiting} trainings are waiting); try again later"
            )
        folder = self._store(word, recordings)
        made = self._known[word] = Training(word, TrainingState.QUEUED)
        task = asyncio.create_task(self._train(made, folder), name=f"train {word}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return made

    async def close(self) -> None:
        """End the running training, and drop those that wait."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _store(self, word: str, recordings: Mapping[str, Sequence[tuple[str, bytes]]]) -> Path:
        folder = self._settings.models / _RECORDINGS / word
        shutil.rmtree(folder, ignore_errors=True)
        for kind, files in recordings.items():
            (folder / kind).mkdir(parents=True)
            for index, (suffix, content) in enumerate(files):
                (folder / kind / f"{index:04d}{suffix}").write_bytes(content)
        return folder.resolve()

    async def _train(self, training: Training, folder: Path) -> None:
        async with self._turn:
            self._known[training.word] = replace(training, state=TrainingState.RUNNING)
            error: str | None = "the gateway was shut down"
            try:
                error = await self._run(self._settings.command(training.word, folder))
            finally:
                state = TrainingState.DONE if error is None else TrainingState.FAILED
                self._known[training.word] = replace(training, state=state, error=error)

    async def _run(self, command: Sequence[str]) -> str | None:
        """Run a command, and return why it failed, or None if it succeeded."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal must reach only this process
        )
        try:
            async with asyncio.timeout(self._limit_s):
                _, output = await process.communicate()
        except TimeoutError:
            return f"the training did not finish within {self._limit_s:g} s and was stopped"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its helpers too
            await process.wait()
        if process.returncode == 0:
            return None
        lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
        found = next((line for line in reversed(lines) if line.startswith(_ERROR)), None)
        if found is None:
            return f"the training ended with exit code {process.returncode}; see the log of the gateway"
        return found.removeprefix(_ERROR)[:_LONGEST_ERROR]
