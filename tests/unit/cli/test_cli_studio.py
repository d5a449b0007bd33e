"""The command `slipway studio` before its server starts: what it refuses, and what its gateway would be."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipway_cli import studio_commands
from slipway_cli.root import run


def test_taken_port_is_refused_before_the_models_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["studio", "--repository", str(tmp_path), "--port", str(port)]) == 2
    message = capsys.readouterr().err
    assert f"got 127.0.0.1:{port}" in message
    assert "try --port 0" in message


def test_missing_repository_is_refused_when_the_studio_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["studio", "--repository", str(tmp_path / "none"), "--port", "0", "--no-browser"]) == 2
    assert "repository must exist" in capsys.readouterr().err


def test_backbone_is_refused_without_a_folder_of_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["studio", "--repository", str(tmp_path), "--port", "0", "--backbone", "demo"]
    assert run(asked) == 2
    assert "try --models trained" in capsys.readouterr().err


@pytest.mark.parametrize(("screens", "opened"), [({}, []), ({"DISPLAY": ":0"}, ["http://127.0.0.1:1"])])
def test_browser_is_opened_only_where_there_is_a_screen(
    monkeypatch: pytest.MonkeyPatch, screens: dict[str, str], opened: list[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in screens.items():
        monkeypatch.setenv(name, value)
    asked: list[str] = []
    monkeypatch.setattr(studio_commands.sys, "platform", "linux")
    monkeypatch.setattr(studio_commands.webbrowser, "open", asked.append)
    server = SimpleNamespace(grpc_url="127.0.0.1:2")
    studio_commands._announce(server, "http://127.0.0.1:1", opens=True)  # type: ignore[arg-type]
    for thread in studio_commands.threading.enumerate():
        if thread.daemon and thread is not studio_commands.threading.main_thread():
            thread.join(1)
    assert asked == opened
    asked.clear()
    studio_commands._announce(server, "http://127.0.0.1:1", opens=False)  # type: ignore[arg-type]
    assert asked == []
