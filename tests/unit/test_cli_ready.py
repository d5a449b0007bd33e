"""`slipway ready` and `slipway drain` where no server answers: one line and an exit code."""

from __future__ import annotations

import pytest

from slipway_cli import root


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["ready", "--url", "localhost:1"], "error: ready: the server must be ready at localhost:1"),
        (["ready", "--url", "localhost:1", "--model", "m"], "error: ready: m must be ready at localhost:1"),
        (["drain", "--metrics", "localhost:1"], "error: drain: metrics must be readable at localhost:1"),
    ],
)
def test_probe_fails_with_one_line_when_no_server_answers(
    command: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root.run(command) == 1
    err = capsys.readouterr().err
    assert err.startswith(said) and err.count("\n") == 1
