"""Program airimu_stream: chunks of recordings in, the corrected frames that are ready out.

Between the chunks of a stream the program keeps its recurrent states and its last frames, on which later
features depend. The corrections of a stream are equal to those of the whole recording: a feature is computed
when no further frame can change it, or at the end. The streams of a batch run through the graph together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.airimu.correct import check_finite, corrected
from slipway_serving.families.airimu.facts import Facts
from slipway_serving.families.airimu.request import CorrectionStreamRequest, CorrectionTurn, frames_of
from slipway_serving.protocol.errors import Cancelled, SlipwayError
from slipway_serving.protocol.events import tensors
from slipway_serving.protocol.requests import decode_turn
from slipway_serving.runtime.graph import Graph
from slipway_serving.runtime.program import BatchOfOne, Call, Settings, Tensors
from slipway_serving.runtime.sessions import Sessions

Array = NDArray[np.float32]


@dataclass
class RecordingState:
    """State of a recording that comes in chunks.

    Attributes:
        states: States of the network after its last feature, by name, [size] each.
        recent: Newest frames, those of the lead-in included, [frames, 6].
        received: Number of frames so far, without the lead-in.
        steps: Number of features so far.
        emitted: Number of frames whose corrections were returned.
        features: Outputs of each run of the current request, by name, [steps, 3] each.
    """

    states: dict[str, Array]
    recent: Array
    received: int = 0
    steps: int = 0
    emitted: int = 0
    features: list[dict[str, Array]] = field(default_factory=list)


class CorrectorStream(BatchOfOne):
    """Program that corrects recordings in chunks of any length, with one session for each recording.

    A :class:`CorrectionStreamRequest` opens a session. Each :class:`CorrectionTurn` carries a chunk, and its
    response is :class:`~slipway_serving.families.airimu.request.Corrections`, [1, ready, 3], of the frames
    that follow those of the last response; at most ``Facts.held_back`` frames are held back. The last turn
    returns all remaining frames; its chunk may have 0 frames. A refused chunk changes nothing.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._facts = Facts.read(settings.folder)
        self._graph = Graph(settings, "step.onnx")
        self._sessions: Sessions[RecordingState] = Sessions.from_settings(settings)

    def run_batch(self, calls: Sequence[Call]) -> list[Tensors | SlipwayError]:
        """Return the corrected frames that each call made ready, or its error."""
        answers: dict[int, Tensors | SlipwayError] = {}
        for turn in _turns(calls):
            streams: dict[int, RecordingState] = {}
            for index in turn:
                try:
                    streams[index] = self._receive(calls[index])
                except SlipwayError as error:
                    answers[index] = error
            try:
                self._advance({index: (streams[index], calls[index].turn.end) for index in streams})
                answers |= {index: self._emit(streams[index], calls[index].turn.end) for index in streams}
            except BaseException as error:
                for index in streams:
                    self._sessions.drop(calls[index].turn)
                if not isinstance(error, SlipwayError):
                    raise
                answers |= dict.fromkeys(streams, error)
                continue
            for index, stream in streams.items():
                self._sessions.store(calls[index].turn, stream)
        return [answers[index] for index in range(len(calls))]

    def close(self) -> None:
        """Free all streams."""
        self._sessions.close()

    def _receive(self, call: Call) -> RecordingState:
        """Check a chunk, take its stream out of the sessions and add the chunk to it."""
        if call.is_cancelled():
            raise Cancelled(f"{self._model}: cancelled by the caller before it began")
        opening, chunk = self._read(call)
        stream = self._sessions.acquire(call.turn, lambda: self._new_stream(opening))
        stream.recent = np.concatenate([stream.recent, frames_of(chunk)[0]])
        stream.received += chunk.acc.shape[1]
        return stream

    def _new_stream(self, opening: CorrectionStreamRequest | None) -> RecordingState:
        states = {name: np.zeros(size, np.float32) for name, size in self._facts.states.items()}
        rotation = None if opening is None else opening.initial_rotation
        return RecordingState(states, self._facts.lead_in(rotation, 1)[0])

    def _read(self, call: Call) -> tuple[CorrectionStreamRequest | None, CorrectionTurn]:
        self._sessions.check_id(call.turn, fix="airimu for whole recordings")
        fewest = 0 if call.turn.end and not call.turn.start else 1
        limits = {"frames": range(fewest, self._facts.max_frames + 1)}
        return decode_turn(CorrectionStreamRequest, call.tensors, self._model, call.turn, limits)

    def _advance(self, streams: dict[int, tuple[RecordingState, bool]]) -> None:
        """Compute every feature that is ready, with all streams together.

        Args:
            streams: Streams by index of the call, each with True if its recording has ended.
        """
        while True:
            steps_left = [(stream, self._steps_left(stream, ended)) for stream, ended in streams.values()]
            pending = [stream for stream, steps in steps_left if steps]
            if not pending:
                return
            steps = min(self._facts.max_steps, *(steps for _, steps in steps_left if steps))
            for row in range(0, len(pending), self._facts.max_batch):
                self._step(pending[row : row + self._facts.max_batch], steps)

    def _steps_left(self, stream: RecordingState, ended: bool) -> int:
        count = self._facts.steps_of if ended else self._facts.steps_ready
        return count(stream.received) - stream.steps

    def _step(self, streams: Sequence[RecordingState], steps: int) -> None:
        """Compute the next features of some streams in one run of the graph."""
        length = self._facts.hop * steps + self._facts.overhang
        inputs_frames, present = zip(*(self._input_frames(stream, length) for stream in streams), strict=True)
        signals = np.stack(inputs_frames)
        states = {name: np.stack([stream.states[name] for stream in streams]) for name in self._facts.states}
        inputs = {"acc": signals[:, :, :3], "gyro": signals[:, :, 3:], "present": np.stack(present), **states}
        values = self._graph.run(inputs, in_memory=self._graph.outputs)
        outputs = {name: value.numpy() for name, value in values.items()}
        check_finite(outputs, self._model)
        for row, stream in enumerate(streams):
            # The states are copied, since a view would keep the whole batch alive.
            stream.states = {name: outputs[f"next_{name}"][row].copy() for name in self._facts.states}
            stream.features.append({name: outputs[name][row] for name in self._facts.outputs})
            stream.steps += steps

    def _input_frames(self, stream: RecordingState, length: int) -> tuple[Array, Array]:
        """Return the frames that a stream's next features depend on, and a mask of those that exist."""
        first = self._facts.hop * stream.steps - self._facts.reach
        newest = self._facts.lead + stream.received
        oldest = newest - len(stream.recent)
        begin, end = max(first, oldest), min(first + length, newest)
        frames, present = np.zeros((length, 6), np.float32), np.zeros(length, np.float32)
        frames[begin - first : end - first] = stream.recent[begin - oldest : end - oldest]
        present[begin - first : end - first] = 1
        return frames, present

    def _emit(self, stream: RecordingState, ended: bool) -> Tensors:
        """Return the corrected frames that are ready, and drop the frames that no later feature needs."""
        facts = self._facts
        ready = stream.received if ended else min(stream.received, facts.frames_ready(stream.steps))
        newest = facts.lead + stream.received
        oldest = newest - len(stream.recent)
        frames = stream.recent[facts.lead + stream.emitted - oldest : facts.lead + ready - oldest]
        runs = {name: [run[name] for run in stream.features] for name in facts.outputs}
        features = {
            name: np.concatenate(parts or [np.zeros((0, 3), np.float32)]) for name, parts in runs.items()
        }
        computed = len(features[facts.outputs[0]])
        index = facts.step_of(np.arange(stream.emitted, ready), stream.steps) - (stream.steps - computed)
        outputs = {name: array[index][None] for name, array in features.items()}
        answer = tensors(corrected(frames[None], outputs))
        stream.emitted, stream.features = ready, []
        # The frames are copied, since a view would keep the whole of a long chunk alive.
        stream.recent = stream.recent[max(0, facts.hop * stream.steps - facts.reach - oldest) :].copy()
        return answer


def _turns(calls: Sequence[Call]) -> Iterator[list[int]]:
    """Group calls, in order, so that each group has at most one call of each stream."""
    pending = list(range(len(calls)))
    while pending:
        turn: dict[int | str, int] = {}
        for index in pending:
            turn.setdefault(calls[index].turn.id, index)
        yield list(turn.values())
        grouped = set(turn.values())
        pending = [index for index in pending if index not in grouped]
