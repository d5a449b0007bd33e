"""AirIMU's programs in process: streams in any chunks, and bad calls of a batch, which fail alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from airimu_fixtures import OUTPUTS, assert_same, chunk_of, joined, rotations, signals, small_repository
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_client import InvalidRequest, Overloaded, SlipwayError, Turn
from slipway_serving.families.airimu.stream import CorrectorStream
from slipway_serving.runtime.in_process import InProcessModels, read_config
from slipway_serving.runtime.program import BatchProgram, Call, Settings, load_program

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def repository(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_repository(shared, tmp_path_factory.mktemp("airimu"))


@pytest.fixture(scope="module")
def models(repository: Path) -> Iterator[InProcessModels]:
    opened = InProcessModels(repository, threads=1)
    yield opened
    opened.close()


@settings(max_examples=20, deadline=None)
@given(frames=st.integers(1, 700), data=st.data())
def test_stream_in_any_chunks_equals_the_whole_recording(
    models: InProcessModels, frames: int, data: st.DataObject
) -> None:
    given = signals(frames)
    turned = {"initial_rotation": rotations()}
    whole = models.call("airimu", {**given, **turned}, OUTPUTS)
    cuts = sorted({0, frames, *data.draw(st.sets(st.integers(0, frames), max_size=12))})
    ends_alone = data.draw(st.booleans())
    parts = []
    for start, stop in pairwise(cuts):
        chunk = chunk_of(given, start, stop) | (turned if start == 0 else {})
        last = stop == frames and not ends_alone
        parts += models.stream("airimu_stream", chunk, OUTPUTS, turn=Turn(7, start=start == 0, end=last))
        held_back = stop - sum(part["acc_cov"].shape[1] for part in parts)
        assert held_back == 0 if last else held_back <= 16
    if ends_alone:
        parts += models.stream("airimu_stream", chunk_of(given, 0, 0), OUTPUTS, turn=Turn(7, end=True))
    assert_same(joined(parts), whole)


@pytest.fixture
def corrector_stream(repository: Path, models: InProcessModels) -> Iterator[BatchProgram]:
    config = read_config(repository / "airimu_stream")
    program = load_program(Settings("airimu_stream", repository / "airimu_stream/1", config))
    assert isinstance(program, CorrectorStream)
    yield program
    program.close()


def test_bad_chunk_in_a_batch_fails_alone(corrector_stream: BatchProgram, models: InProcessModels) -> None:
    given = signals(60)
    bad = chunk_of(given, 20, 40)
    bad["acc"] = np.full_like(bad["acc"], np.nan)
    calls = [
        Call(chunk_of(given, 0, 20), models, turn=Turn(1, start=True)),
        Call(chunk_of(given, 0, 20), models, turn=Turn(2, start=True)),
        Call(bad, models, turn=Turn(1)),
        Call(chunk_of(given, 20, 60), models, turn=Turn(1, end=True)),
        Call(chunk_of(given, 0, 1), models, turn=Turn(3)),
        Call(chunk_of(given, 20, 60), models, turn=Turn(2, end=True)),
    ]
    answers = corrector_stream.run_batch(calls)
    assert [isinstance(answer, SlipwayError) for answer in answers] == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    whole = models.call("airimu", given, OUTPUTS)
    # The refused chunk changed nothing: the streams go on as if it had not been sent.
    assert_same(joined([answers[0], answers[3]]), whole)
    assert_same(joined([answers[1], answers[5]]), whole)


def test_beginnings_of_one_batch_count_before_they_are_kept(
    repository: Path, models: InProcessModels
) -> None:
    config = read_config(repository / "airimu_stream")
    config["parameters"]["max_sessions"]["string_value"] = "2"
    program = load_program(Settings("airimu_stream", repository / "airimu_stream/1", config))
    calls = [Call(signals(20), models, turn=Turn(key, start=True)) for key in (1, 2, 3)]
    first, second, third = program.run_batch(calls)
    assert not isinstance(first, SlipwayError)
    assert not isinstance(second, SlipwayError)
    assert isinstance(third, Overloaded)
    program.close()


def test_bad_recording_in_a_batch_fails_alone(repository: Path, models: InProcessModels) -> None:
    config = read_config(repository / "airimu")
    program = load_program(Settings("airimu", repository / "airimu/1", config))
    good, bad = signals(30), signals(30)
    bad["gyro"] = bad["gyro"][:, :29]
    first, second, third = program.run_batch([Call(each, models) for each in (good, bad, good)])
    assert isinstance(second, InvalidRequest)
    whole = models.call("airimu", good, OUTPUTS)
    assert_same(first, whole)
    assert_same(third, whole)
