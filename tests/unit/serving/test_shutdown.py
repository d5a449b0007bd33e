"""How a server that is going tells its models, and requests their ends, by files in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway_serving.protocol.errors import NotReady
from slipway_serving.runtime.cancellation.running_requests import cancel_request, register_request
from slipway_serving.runtime.shutdown import AdmissionGate, ShutdownStage, announce
from slipway_serving.system.server_folder import FOLDER_VARIABLE, runtime_folder, runtime_folder_at

ID = "slipway-" + "0a" * 16


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "requests"))
    return tmp_path / "requests"


def refuses(gate: AdmissionGate) -> bool:
    try:
        gate.check()
    except NotReady as error:
        assert "is shutting down and takes no new requests; retry on a new connection" in str(error)
        return True
    return False


def test_pipelines_refuse_first_and_the_models_that_they_call_last(folder: Path) -> None:
    gates = [AdmissionGate("video", is_pipeline=True), AdmissionGate("tokenizer", is_pipeline=False)]
    assert [refuses(gate) for gate in gates] == [False, False]
    announce(folder, ShutdownStage.PIPELINES_REFUSE)
    assert [refuses(gate) for gate in gates] == [True, False]
    announce(folder, ShutdownStage.ALL_REFUSE)
    assert [refuses(gate) for gate in gates] == [True, True]


def test_gates_stay_open_when_only_the_stop_of_pipelines_is_announced(folder: Path) -> None:
    announce(folder, ShutdownStage.PIPELINES_STOP)
    assert (folder / "pipelines_stop").is_file()
    assert AdmissionGate("video", is_pipeline=True).is_open
    assert AdmissionGate("tokenizer", is_pipeline=False).is_open


def test_request_is_known_while_it_is_under_way_and_can_be_ended(folder: Path) -> None:
    assert not cancel_request(ID)
    with register_request(ID) as outer, register_request(ID) as called:  # a model that it calls has its id
        assert outer is not None
        assert called is not None
        assert not outer.is_cancelled()
        assert cancel_request(ID)
        assert outer.is_cancelled()
        assert called.is_cancelled()
    assert not cancel_request(ID)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("request_id", ["", "7", "slipway-../x", ID[:-1], f"{ID}0", ID.upper()])
def test_request_is_not_known_by_an_id_that_may_come_twice_or_is_a_path(
    folder: Path, request_id: str
) -> None:
    with register_request(request_id) as running:
        assert running is None
        assert not cancel_request(request_id)
    assert not folder.exists()


def test_folder_is_named_by_the_server_process_where_its_environment_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert runtime_folder() == runtime_folder()
    assert runtime_folder().name.startswith("slipway-")
    assert runtime_folder_at(1) is None
