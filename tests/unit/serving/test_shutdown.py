"""How a server that is going tells its models, and requests their ends, by files in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway_serving.protocol.errors import NotReady
from slipway_serving.runtime.cancellation.running_requests import end, under_way
from slipway_serving.runtime.shutdown import Door, Going, tell
from slipway_serving.system.server_folder import FOLDER_VARIABLE, folder_at, folder_here

ID = "slipway-" + "0a" * 16


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "requests"))
    return tmp_path / "requests"


def refuses(door: Door) -> bool:
    try:
        door.check()
    except NotReady as error:
        assert "about to stop; try again on a new connection" in str(error)
        return True
    return False


def test_pipelines_refuse_first_and_the_models_that_they_call_last(folder: Path) -> None:
    doors = [Door("video", is_pipeline=True), Door("tokenizer", is_pipeline=False)]
    assert [refuses(door) for door in doors] == [False, False]
    tell(folder, Going.PIPELINES_REFUSE)
    assert [refuses(door) for door in doors] == [True, False]
    tell(folder, Going.ALL_REFUSE)
    assert [refuses(door) for door in doors] == [True, True]


def test_request_is_known_while_it_is_under_way_and_can_be_ended(folder: Path) -> None:
    assert not end(ID)
    with under_way(ID) as outer, under_way(ID) as called:  # a model that it calls has its id
        assert outer is not None
        assert called is not None
        assert not outer.is_ended()
        assert end(ID)
        assert outer.is_ended()
        assert called.is_ended()
    assert not end(ID)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("request_id", ["", "7", "slipway-../x", ID[:-1], f"{ID}0", ID.upper()])
def test_request_is_not_known_by_an_id_that_may_come_twice_or_is_a_path(
    folder: Path, request_id: str
) -> None:
    with under_way(request_id) as ours:
        assert ours is None
        assert not end(request_id)
    assert not folder.exists()


def test_folder_is_named_by_the_server_process_where_its_environment_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert folder_here() == folder_here()
    assert folder_here().name.startswith("slipway-")
    assert folder_at(1) is None
