"""The root of the `slipway` command: names, exit codes, one line per error, a quick start."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from slipway_cli import root, saving
from slipway_serving.protocol.errors import Cancelled, InvalidRequest, NotReady, SlipwayError

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = ("families", "checkpoint", "export", "serve", "generate")


def raise_in_generate(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make the command fail at its first step, as a defect in it would."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(saving, "check_output", fail)


def generate(*root_flags: str) -> int:
    return root.run([*root_flags, "generate", "wan_t2v", "x"])


def test_every_command_is_listed_when_help_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert root.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("name", [*COMMANDS[:-1], "generate wan_t2v"])
def test_command_describes_itself_when_help_is_asked(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert root.run([*name.split(), "--help"]) == 0
    assert f"Usage: slipway {name}" in capsys.readouterr().out


def test_version_is_that_of_the_distribution_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert root.run(["--version"]) == 0
    assert capsys.readouterr().out == f"slipway {version('slipway-triton')}\n"


@pytest.mark.parametrize("flags", [["nope"], ["--nope"], []])
def test_usage_is_shown_when_the_command_line_cannot_be_read(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert root.run(flags) == 2
    assert "Usage: slipway" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "error",
    [InvalidRequest("x: y must be z"), NotReady("no server"), Cancelled("by you")],
    ids=lambda e: e.code,
)
def test_error_of_ours_is_one_line_with_its_exit_code_when_raised(
    error: SlipwayError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_in_generate(monkeypatch, error)
    assert generate() == error.exit_code
    assert capsys.readouterr() == ("", f"error: {error}\n")


def test_error_is_one_line_when_its_text_has_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_in_generate(monkeypatch, NotReady("first\n  second"))
    assert generate() == 1
    assert capsys.readouterr().err == "error: first second\n"


def test_defect_is_one_line_with_a_hint_when_raised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_in_generate(monkeypatch, ZeroDivisionError("oops"))
    assert generate() == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ZeroDivisionError: oops") and "--debug" in err
    assert err.count("\n") == 1 and "Traceback" not in err


def test_traceback_is_shown_when_debugging(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_in_generate(monkeypatch, ZeroDivisionError("oops"))
    assert generate("--debug") == 1
    assert "Traceback" in capsys.readouterr().err


def test_file_error_names_the_file_when_raised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_in_generate(monkeypatch, PermissionError(13, "Permission denied", "/some/file"))
    assert generate() == 1
    assert capsys.readouterr().err == "error: Permission denied: /some/file\n"


def asked_extras() -> set[str]:
    """Return the extras that commands and other errors name."""
    sources = [path.read_text() for path in ROOT.glob("*/slipway_*/**/*.py")]
    hints = [hint for text in sources for hint in re.findall(r"install_hint\(([^)*:]*)\)", text)]
    named = {name for hint in hints for name in re.findall(r"[\"']([\w,-]+)[\"']", hint)}
    return named | {command.extra for command in root.COMMANDS if command.extra}


def test_every_extra_that_is_named_exists_when_pyproject_is_read() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert (
        {"export", "server", "signals", "training", "management", "loadtests"}
        <= asked_extras()
        <= set(extras)
    )


@pytest.mark.parametrize(
    ("command", "extra"), [("export", "export"), ("checkpoint", "export"), ("serve", "server")]
)
def test_missing_package_names_its_extra_when_a_command_needs_it(command: str, extra: str) -> None:
    error = ModuleNotFoundError("No module named 'torch'", name="torch.nn")
    text = root.describe(error, root.Invocation(command=command))
    fix = f'pip install ".[{extra}]" in a checkout of Slipway'
    assert text == f"{command} needs torch, which is not installed; try {fix}"


def test_missing_package_of_the_bare_install_names_it_when_a_command_needs_it() -> None:
    error = ModuleNotFoundError("No module named 'httpx'", name="httpx")
    text = root.describe(error, root.Invocation(command="ready"))
    assert text == "ready needs httpx, which is not installed; try pip install . in a checkout of Slipway"


def test_no_text_tells_to_install_from_an_index_when_none_has_slipway() -> None:
    texts = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/slipway_*/**/*.py")]
    wrong = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in texts
        for found in re.finditer(
            r"pip install [^\n]*slipway-triton\b[^\n]*", path.read_text(encoding="utf-8")
        )
    ]
    assert wrong == []


def test_demo_says_how_to_call_slipway_when_it_ends() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    # The gateway comes last, since in a terminal it stays until Ctrl-C.
    assert shown[-1].endswith("examples/gateway.py")
    assert any("  . .venv/bin/activate" in line for line in shown[-4:])
    assert "\n. .venv/bin/activate" in (ROOT / "README.md").read_text().split("## Two commands")[1]


def test_demo_installs_the_extras_of_its_commands_and_no_others() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "\ndemo: $(VENV)/installed-demo ##" in makefile
    (asked,) = re.findall(r"installed-demo: .*\n.*\n\t\$\(INSTALL\) '\.\[([\w,]+)\]'", makefile)
    examples = "".join(path.read_text() for path in (ROOT / "examples").glob("*.py"))
    called = set(re.findall(r"slipway\(\"([\w-]+)\"|\"slipway_cli\", \"([\w-]+)\"", examples))
    called = {name for names in called for name in names if name}
    assert {"checkpoint", "generate", "play", "listen", "imu"} <= called
    # Each example exports and serves by the library.
    needed = {command.extra for command in root.COMMANDS if command.name in {*called, "export", "serve"}}
    assert set(asked.split(",")) == needed - {None}


# A stand-in for the wheel, which has neither package.
WITHOUT_CHECKOUT = (
    "import sys\n"
    "sys.modules |= {'slipway_benchmarks': None, 'slipway_recipes': None}\n"
    "from slipway_cli import root\n"
    "sys.exit(root.run(sys.argv[1:]))"
)


@pytest.mark.parametrize(
    ("line", "what", "extra"),
    [
        ("bench", "bench: the benchmarks", "loadtests"),
        ("bench video -h", "bench: the benchmarks", "loadtests"),
        ("train weights airimu", "train weights: the recipes of the demo checkpoints", "training"),
    ],
)
def test_tool_of_developers_says_how_to_get_it_when_the_checkout_is_missing(
    line: str, what: str, extra: str
) -> None:
    command = [sys.executable, "-c", WITHOUT_CHECKOUT, *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    where = "are installed from a checkout only; clone the repository and run: pip install -e"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {what} {where} '.[{extra}]'\n"


def test_help_lists_no_tool_of_developers_when_the_checkout_is_missing() -> None:
    for line, listed, hidden in (("--help", "capacity", "bench"), ("train --help", "wakeword", "weights")):
        command = [sys.executable, "-c", WITHOUT_CHECKOUT, *line.split()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert re.search(rf"^  {listed} ", done.stdout, re.M)
        assert hidden not in done.stdout


def test_missing_module_of_ours_is_a_defect_when_raised() -> None:
    error = ModuleNotFoundError("No module named 'slipway_serving.nope'", name="slipway_serving.nope")
    assert "bug" in root.describe(error, root.Invocation(command="serve"))


def test_interrupt_exits_130_when_a_command_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    raise_in_generate(monkeypatch, KeyboardInterrupt())
    assert generate() == 130


def test_nothing_heavy_is_imported_when_help_is_asked() -> None:
    code = (
        "import sys; from slipway_cli import root; code = root.run(['--help'])\n"
        "heavy = {'torch', 'grpc', 'httpx', 'diffusers', 'onnx', 'onnxruntime', 'transformers', 'rich'}\n"
        "assert code == 0 and not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_no_traceback_is_shown_when_the_reader_of_stdout_has_gone() -> None:
    shell = f"{sys.executable} -m slipway_cli.root --help | true; exit ${{PIPESTATUS[0]}}"
    process = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in process.stderr and "Exception" not in process.stderr
