"""Who may order a running server to load models, and what the orders look like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slipway_serving.protocol.errors import InvalidRequest, NotReady
from slipway_serving.protocol.proxies import is_loopback
from slipway_serving.triton.control import ModelControl, read_token
from slipway_serving.triton.server import Server, ServerConfig

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("example.org", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_is_loopback_trusts_only_what_cannot_be_reached_from_elsewhere(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_read_token_takes_one_token_and_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert read_token(tmp_path / "token") == TOKEN


@pytest.mark.parametrize("text", ["", "short", f"{TOKEN} {TOKEN}", f"{TOKEN}\n{TOKEN}", "ü" * 20, "x" * 513])
def test_read_token_refuses_what_is_no_token_and_does_not_show_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(InvalidRequest, match="token file") as caught:
        read_token(tmp_path / "token")
    assert not text or text not in str(caught.value)


def test_read_token_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"token file must be a readable text file, got .*absent"):
        read_token(tmp_path / "absent")


@pytest.mark.parametrize("url", ["localhost", "http://localhost:8000", "localhost:http", ":8000", "a/b:8000"])
def test_control_refuses_an_address_that_is_none(url: str) -> None:
    with pytest.raises(InvalidRequest, match="triton url must be HOST:PORT"):
        ModelControl(url)


def test_control_says_when_no_server_answers() -> None:
    with pytest.raises(NotReady, match=r"triton 127\.0\.0\.1:1: server does not answer \("):
        ModelControl("127.0.0.1:1").load("net")


def test_tokens_are_not_shown() -> None:
    assert TOKEN not in repr(ModelControl("localhost:8000", TOKEN))
    config = ServerConfig(Path("models"), model_control="explicit", control_token=TOKEN)
    assert TOKEN not in repr(config)


def test_server_without_a_token_makes_a_key_of_its_own_that_is_not_another_ones() -> None:
    config = ServerConfig(Path("models"), host="0.0.0.0", model_control="explicit")
    keys = {Server(config).control_token for _ in range(3)}
    assert len(keys) == 3
    assert all(len(key) >= 43 for key in keys)
    assert Server(replace(config, control_token=TOKEN)).control_token == TOKEN


def test_unknown_mode_of_model_control_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="model_control must be one of none, explicit, got 'poll'"):
        ServerConfig(Path("models"), model_control="poll")  # type: ignore[arg-type]
