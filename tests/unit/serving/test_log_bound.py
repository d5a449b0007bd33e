"""Triton's log does not grow without end, and who follows it misses nothing when it begins anew."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

from slipway_serving.triton.server_log import append_event, follow, limit_size, open_for_append


def test_log_begins_anew_and_its_earlier_lines_lie_beside_it_when_it_is_long(tmp_path: Path) -> None:
    path = tmp_path / "triton.log"
    with path.open("ab") as log:  # as the server holds it
        log.write(b"first\n")
        log.flush()
        limit_size(path, limit_bytes=6)
        assert path.read_text() == "first\n"
        log.write(b"second\n")
        log.flush()
        limit_size(path, limit_bytes=6)
        log.write(b"third\n")
    assert path.read_text() == "third\n"
    assert (tmp_path / "triton.log.1").read_text() == "first\nsecond\n"


def test_follower_hands_on_what_comes_after_the_log_began_anew(tmp_path: Path) -> None:
    path, lines, stop, seen = tmp_path / "triton.log", list[str](), threading.Event(), threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        seen.set()

    with path.open("ab", buffering=0) as log:
        log.write(b"first\n")
        follower = threading.Thread(target=follow, args=(path, write, stop, 0.01))
        follower.start()
        assert seen.wait(60)
        limit_size(path, limit_bytes=0)
        seen.clear()
        log.write(b"2nd\n")
        assert seen.wait(60)
    stop.set()
    follower.join()
    assert lines == ["first\n", "2nd\n"]


def test_log_that_is_not_there_is_left_so(tmp_path: Path) -> None:
    limit_size(tmp_path / "none.log", limit_bytes=0)
    assert list(tmp_path.iterdir()) == []


def test_log_begins_anew_and_says_so_when_its_earlier_lines_cannot_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "triton.log"
    path.write_bytes(b"first\n")
    (tmp_path / "triton.log.1").mkdir()  # in the place of the file, which so cannot be written
    limit_size(path, limit_bytes=5)
    assert "first" not in path.read_text()
    assert "earlier_log_lost" in path.read_text()


def test_record_tells_why_a_log_cannot_be_written() -> None:
    unwritten = append_event(Path("/dev/full"), "model_died")
    assert unwritten is not None
    assert unwritten.errno == errno.ENOSPC


def test_process_is_given_a_log_though_it_cannot_be_opened(tmp_path: Path) -> None:
    with open_for_append(tmp_path / "none" / "triton.log") as log:
        log.write(b"lost\n")
    assert list(tmp_path.iterdir()) == []
