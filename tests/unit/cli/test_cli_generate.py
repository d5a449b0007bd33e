"""`slipway generate` before any server is asked: flags, sizes, places, exit codes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from slipway_cli import files, options, root, saving
from slipway_client.progress import progress
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol.errors import InvalidRequest

NOBODY = "127.0.0.1:1"


def generate(*flags: str) -> int:
    return root.run(["generate", "wan_t2v", "A lake", *flags])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--frames", "16"], "frames must be"),
        (["--size", "64x50"], "height must be a multiple of 16"),
        (["--size", "50x64"], "width must be a multiple of 16"),
        (["--size", "64"], "--size must be WIDTHxHEIGHT"),
        (["--steps", "0"], "steps must be"),
        (["--guidance-scale", "nan"], "guidance_scale must be 0 to 1000, got nan; try 0"),
        (["--guidance_scale_2", "-1"], "guidance_scale_2 must be 0 to 1000"),
        (["--flow-shift", "0"], "flow_shift must be"),
        (["--fps", "0"], "fps must be"),
        (["--seed", "-1"], "seed must be"),
        (["--timeout", "0"], "timeout_s must be"),
        (["--output", "missing/out.mp4"], "folder that exists"),
        (["--output", "out.avi"], "must end in .mp4 or .npy"),
    ],
)
def test_generate_exits_2_with_one_line_when_a_value_breaks_its_rule(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(*flags, "--url", NOBODY) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "flag"),
    [(["--frames", "many"], "--frames"), (["--protocol", "ftp"], "--protocol"), (["--wrong"], "--wrong")],
)
def test_generate_exits_2_with_usage_when_a_flag_cannot_be_read(
    flags: list[str], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(*flags) == 2
    err = capsys.readouterr().err
    assert flag in err and "Usage:" in err


def test_generate_names_every_bad_field_when_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--frames", "16", "--steps", "0") == 2
    err = capsys.readouterr().err
    assert "frames must be" in err and "steps must be" in err


def test_generate_exits_1_when_no_server_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.mp4"
    assert generate("--output", str(output), "--url", NOBODY, "--timeout", "20") == 1
    assert NOBODY in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "size"), [("832x480", (832, 480)), ("64*32", (64, 32)), (" 1X2 ", (1, 2))])
def test_size_is_width_then_height_when_parsed(text: str, size: tuple[int, int]) -> None:
    assert options.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "64", "64x", "x64", "64x64x3", "-1x5", "6.4x64"])
def test_size_is_refused_when_it_is_not_two_numbers(text: str) -> None:
    with pytest.raises(InvalidRequest, match="WIDTHxHEIGHT"):
        options.parse_size(text)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_output_is_refused_when_its_folder_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidRequest, match="folder that can be written"):
        saving.check_output(tmp_path / "out.mp4", TextToVideoRequest.events)


@pytest.mark.parametrize(
    "line",
    [
        "generate wan_t2v x --output out.mp4",
        "listen said.wav --plot out.png",
        "imu recording --output out.csv",
        "imu recording --output new.csv --plot out.png",
        "load --family wan_t2v --html out.html",
        "load --family wan_t2v --json out.json",
    ],
)
def test_existing_file_is_refused_before_any_work_unless_overwriting_is_asked(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (name,) = re.findall(r"out\.\w+", line)
    (tmp_path / name).write_text("before")
    monkeypatch.setattr("slipway_loadtests.load_commands._require_locust", lambda: None)
    command = [*line.split(), "--url", f"http://{NOBODY}"]
    assert root.run(command) == 2
    assert f"must be a file that does not exist yet, got {name}; try another name, or --overwrite" in (
        capsys.readouterr().err
    )
    assert root.run([*command, "--overwrite"]) != 0  # what it reads, or the server, is not there
    assert "does not exist yet" not in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_output_is_refused_when_it_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "out.mp4"
    folder.mkdir()
    with pytest.raises(InvalidRequest, match="not a folder"):
        saving.check_output(folder, TextToVideoRequest.events)


def test_file_is_whole_when_written(tmp_path: Path) -> None:
    place = tmp_path / "out.mp4"
    place.write_bytes(b"old")
    files.write_whole(place, lambda file: file.write(b"new") and None)
    assert place.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [place]


def test_file_is_as_before_when_writing_fails(tmp_path: Path) -> None:
    place = tmp_path / "out.mp4"
    place.write_bytes(b"old")

    def broken(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_whole(place, broken)
    assert place.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [place]


def test_every_option_has_help_when_the_command_is_described() -> None:
    commands: Any = typer.main.get_command(root.app)
    group = commands.commands["generate"]
    for parameter in group.get_command(None, "wan_t2v").params:
        assert getattr(parameter, "help", None), parameter.name


def test_progress_is_a_few_plain_lines_when_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("step", quiet=False) as report:
        for step in range(1, 101):
            report(step, 100)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 10 and "\x1b" not in err and "\r" not in err
    assert lines[-1].startswith("step 100/100")
    assert "elapsed" in lines[0] and "remaining" in lines[0]


def test_remaining_time_is_that_of_the_steps_done_here_when_a_video_is_continued(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 1.0, 2.0])
    monkeypatch.setattr("slipway_client.progress.time.monotonic", lambda: next(times))
    with progress("step", quiet=False) as report:
        report(9, 12)
        report(10, 12)
    assert capsys.readouterr().err.splitlines()[-1] == "step 10/12, 2.0 s elapsed, 2.0 s remaining"


def test_progress_is_silent_when_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("step", quiet=True) as report:
        report(1, 2)
    assert capsys.readouterr() == ("", "")


def test_help_says_what_the_size_means_when_asked() -> None:
    result = CliRunner().invoke(root.app, ["generate", "wan_t2v", "--help"])
    assert result.exit_code == 0
    assert "WIDTHxHEIGHT" in result.output


def test_help_says_in_words_how_many_turns_there_are_by_default() -> None:
    result = CliRunner().invoke(root.app, ["generate", "matrix_game_universal", "--help"])
    text = " ".join(result.output.partition("--turns")[2].partition("--output")[0].split())
    assert "by default, or with 0, one turn for each entry of the files." in text and "[default" not in text
