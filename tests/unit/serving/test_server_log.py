# ruff: noqa: E501 - the records of a log are as long as they are
"""What is read from a log of `tritonserver` 2.51."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from slipway_serving.triton.server_log import (
    fatal_reason,
    follow,
    load_failures,
    loading_models,
    log_errors,
    printed_lines,
)

LOG = r"""
I1120 22:20:10.567780 4696 model_lifecycle.cc:472] "loading: slow:1"
I1120 22:20:10.567834 4696 model_lifecycle.cc:472] "loading: good:1"
[libprotobuf ERROR /build/text_format.cc:337] Error parsing text-format inference.ModelConfig: 2:6: no field "bogus".
E1120 22:20:10.566982 4696 model_repository_manager.cc:1460] "Poll failed for model directory 'badcfg': failed to read text proto from /r/badcfg/config.pbtxt"
E1120 22:20:10.567643 4696 model_repository_manager.cc:703] "Invalid argument: ensemble e2 contains models that are not available or ambiguous: nomodel"
a line that a model printed
E1120 22:20:10.567986 4696 model_repository_manager.cc:724] "failed to load model 'nover': at least one version must be available"
E1120 22:21:35.730802 4884 model_lifecycle.cc:642] "failed to load 'fails' version 1: Internal: TritonModelException: [INVALID_ARGUMENT] fails: first\nsecond\n\nAt:\n  /b/model.py(8): auto_complete_config\n"
I1120 22:21:35.730819 4884 model_lifecycle.cc:777] "failed to load 'fails'"
E1120 22:23:45.645828 5559 model_repository_manager.cc:703] "Invalid argument: ensemble 'ens' depends on 'fails' which has no loaded version. Model 'fails' loading failed with error: x"
I1120 22:21:37.479964 5098 pb_stub.cc:2105]  Failed to preinitialize Python stub: Python model file not found in '/r/pyless/1/model.py'
I1120 22:23:45.645758 5559 model_lifecycle.cc:839] "successfully loaded 'good'"
"""


def test_each_failed_model_is_told_with_its_reason() -> None:
    assert load_failures(LOG) == {
        "badcfg": 'config.pbtxt cannot be read: Error parsing text-format inference.ModelConfig: 2:6: no field "bogus".',
        "e2": "contains models that are not available or ambiguous: nomodel",
        "nover": "at least one version must be available",
        "fails": "first\nsecond",
        "ens": "depends on 'fails' which has no loaded version",
        "pyless": "Python model file not found in '/r/pyless/1/model.py'",
    }


def test_lines_that_models_print_are_told_from_records() -> None:
    assert printed_lines(LOG) == [
        '[libprotobuf ERROR /build/text_format.cc:337] Error parsing text-format inference.ModelConfig: 2:6: no field "bogus".',
        "a line that a model printed",
    ]


def test_follow_waits_for_a_file_that_does_not_exist_yet(tmp_path: Path) -> None:
    log, lines, stop, seen = tmp_path / "log", list[str](), threading.Event(), threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        seen.set()

    follower = threading.Thread(target=follow, args=(log, write, stop, 0.01))
    follower.start()
    log.write_text("first\n")
    assert seen.wait(60)
    stop.set()
    follower.join(60)
    assert lines == ["first\n"]


def test_follow_ends_when_the_file_never_comes(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    follow(tmp_path / "none", lambda _: None, stop)


def test_no_failure_is_told_when_there_is_none() -> None:
    assert load_failures("I1120 22:23:45.6 5 a.cc:8] \"successfully loaded 'good'\"\n") == {}


def test_models_that_have_not_answered_are_told() -> None:
    assert loading_models(LOG) == ["slow"]


def test_reason_is_told_when_the_server_itself_cannot_start() -> None:
    text = "failed to start GRPC service: Unavailable - Socket '127.0.0.1:8001' already in use"
    assert fatal_reason(f'{LOG}E1120 22:23:45.6 5 main.cc:8] "{text}"\n') == text
    assert fatal_reason(f"{LOG}error: {text}\n") == text
    assert fatal_reason(LOG) is None


def test_follow_hands_on_lines_that_come_later(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n")
    lines: list[str] = []
    stop, seen = threading.Event(), threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        seen.set()

    follower = threading.Thread(target=follow, args=(log, write, stop, 0.01))
    follower.start()
    assert seen.wait(5)
    with log.open("a") as file:
        file.write("second\n")
    stop.set()
    follower.join(5)
    assert lines == ["first\n", "second\n"]


USAGE = "Usage: tritonserver [options]\n  --help\n\tPrint usage\n"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (f"/opt/bin/tritonserver: unrecognized option '--x=1'\n{USAGE}", "unrecognized option '--x=1'"),
        (
            f'{USAGE}\nBad option: "--rate-limit".\ninvalid argument for --rate-limit\n',
            'Bad option: "--rate-limit". invalid argument for --rate-limit',
        ),
    ],
)
def test_fatal_names_an_argument_that_triton_does_not_take(log: str, reason: str) -> None:
    assert fatal_reason(log) == reason


def test_error_of_a_callback_goes_to_the_log_when_it_raises(tmp_path: Path) -> None:
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if line == "second":
            raise ValueError("cannot tell")

    tell_safely = log_errors(tmp_path / "log", tell)
    tell_safely("first")
    assert not (tmp_path / "log").exists()
    tell_safely("second")
    assert lines == ["first", "second"]
    text = (tmp_path / "log").read_text()
    assert "not_told" in text and "second" in text and "ValueError('cannot tell')" in text
