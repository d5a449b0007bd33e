"""What a drain announces to a server's models, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway_serving.runtime.shutdown import ShutdownStage
from slipway_serving.system import server_processes
from slipway_serving.system.process_state import ProcessState
from slipway_serving.system.server_processes import ServerResources
from slipway_serving.triton import drain
from slipway_serving.triton.drain import drain_by_count
from slipway_serving.triton.termination import drain_pipelines

REFUSE, STOP, ALL_REFUSE = "pipelines_refuse", "pipelines_stop", "all_refuse"


def announced(folder: Path) -> set[str]:
    """The stages that the models of a server know of."""
    return {stage.value for stage in ShutdownStage if (folder / stage.value).exists()}


@pytest.mark.parametrize(("checkpoint", "stages"), [(False, {REFUSE}), (True, {REFUSE, STOP})])
def test_drain_stops_videos_only_when_it_checkpoints(
    checkpoint: bool, stages: set[str], tmp_path: Path
) -> None:
    seen = []

    def running() -> int:
        seen.append(announced(tmp_path))
        return 1 if len(seen) == 1 else 0

    assert drain_by_count(running, 60, tmp_path, checkpoint=checkpoint) == 0
    assert seen == [stages] * len(seen)
    assert announced(tmp_path) == stages | {ALL_REFUSE}


def test_pipelines_refuse_before_their_videos_stop_when_a_drain_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[ShutdownStage] = []
    monkeypatch.setattr(drain, "announce", lambda folder, stage: stages.append(stage))
    drain_by_count(lambda: 0, 60, tmp_path, checkpoint=True)
    assert stages == [
        ShutdownStage.PIPELINES_REFUSE,
        ShutdownStage.PIPELINES_STOP,
        ShutdownStage.ALL_REFUSE,
    ]


def test_models_serve_on_when_videos_do_not_stop_in_time(tmp_path: Path) -> None:
    assert drain_by_count(lambda: 1, 0, tmp_path, checkpoint=True) == 1
    assert announced(tmp_path) == {REFUSE, STOP}


def test_drain_waits_longer_for_the_open_sessions_of_pipelines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = []

    def running() -> int:
        polls.append(len(polls))
        if len(polls) == 8:
            world.remove_session(7)
        return 0

    monkeypatch.setattr(drain, "_POLL_S", 0.0)
    world = ProcessState(tmp_path, "world", "world_0")
    world.record_serving(is_pipeline=True)
    world.record_session(7)
    assert drain_by_count(running, 60, tmp_path) == 0
    assert len(polls) == 8
    # A session that nobody asks for ends the wait after a while; that of another model does not begin it.
    world.record_session(8)
    polls[:] = range(100)
    assert drain_by_count(running, 60, tmp_path) == 0
    assert len(polls) == 150
    world.remove_session(8)
    stream = ProcessState(tmp_path, "stream", "stream_0")
    stream.record_serving()
    stream.record_session(9)
    polls[:] = range(100)
    assert drain_by_count(running, 60, tmp_path) == 0
    assert len(polls) == 102


@pytest.mark.parametrize("checkpoint", [False, True])
def test_server_tells_its_pipelines_to_stop_when_it_checkpoints_on_stop(
    checkpoint: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_processes, "SHARED_MEMORY", tmp_path)
    resources = ServerResources("slipway-1-none-", "/none", 0, 60, "", checkpoint_on_stop=checkpoint)
    drain_pipelines(resources)
    assert (STOP in announced(resources.runtime_folder)) == checkpoint
