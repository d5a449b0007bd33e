"""`--config FILE.yaml`: what a file may say, and who wins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner, Result

from slipway_export.commands.config_file import config_option

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"token_normalize_func": lambda token: token.replace("_", "-")},
)


@app.command()
def build(
    family: Annotated[str, typer.Argument()],
    checkpoint_path: Annotated[Path, typer.Option(help="Needed.")],
    config: Annotated[Path | None, config_option()] = None,
    opset_version: Annotated[int, typer.Option(min=7, max=30)] = 23,
    component: Annotated[list[str] | None, typer.Option()] = None,
    simplify: Annotated[bool, typer.Option("--simplify/--no-simplify")] = False,
    variant: Annotated[str, typer.Option("--variant", "--mode", hidden=True)] = "",
) -> None:
    """Print what was understood."""
    typer.echo(f"{family} {checkpoint_path} {opset_version} {component or []} {simplify}{variant}")


def run(tmp_path: Path, yaml: str, *flags: str) -> Result:
    path = tmp_path / "build.yaml"
    path.write_text(yaml)
    return CliRunner().invoke(app, ["wan", "--config", str(path), *flags])


def test_options_come_from_the_file_when_not_on_the_command_line(tmp_path: Path) -> None:
    yaml = "checkpoint-path: a/b\nopset_version: 18\ncomponent: [vae, text]\nsimplify: true\n"
    result = run(tmp_path, yaml)
    assert result.output == "wan a/b 18 ['vae', 'text'] True\n"


def test_flag_wins_when_the_file_says_otherwise(tmp_path: Path) -> None:
    yaml = "checkpoint_path: a\nopset-version: 18\nsimplify: true\ncomponent: [vae]\n"
    result = run(tmp_path, yaml, "--opset_version", "20", "--no-simplify", "--component", "text")
    assert result.output == "wan a 20 ['text'] False\n"


def test_flag_wins_when_it_comes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "build.yaml"
    path.write_text("opset-version: 18")
    flags = ["wan", "--opset-version", "20", "--checkpoint-path", "a", "--config", str(path)]
    assert CliRunner().invoke(app, flags).output == "wan a 20 [] False\n"


def test_single_value_is_a_list_of_one_when_the_option_repeats(tmp_path: Path) -> None:
    assert run(tmp_path, "checkpoint-path: a\ncomponent: vae").output == "wan a 23 ['vae'] False\n"


def test_option_has_all_its_names_when_it_has_several(tmp_path: Path) -> None:
    assert run(tmp_path, "checkpoint-path: a\nmode: b\n").output == "wan a 23 [] Falseb\n"
    assert run(tmp_path, "checkpoint-path: a\nvariant: b\n").output == "wan a 23 [] Falseb\n"
    result = run(tmp_path, "checkpoint-path: a\nvariant: b\nmode: c\n")
    assert result.exit_code == 2
    assert "mode must be given once" in result.output


def test_default_holds_when_a_key_has_no_value(tmp_path: Path) -> None:
    assert run(tmp_path, "checkpoint-path: a\nopset-version:\n").output == "wan a 23 [] False\n"


@pytest.mark.parametrize(
    ("yaml", "words"),
    [
        ("chekpoint-path: a", ["no option chekpoint-path", "did you mean checkpoint-path?", "opset-version"]),
        ("zzz: 1\nyyy: 2", ["no option zzz", "no option yyy", "allowed are"]),
        ("config: other.yaml", ["no option config"]),
        ("1: 2", ["no option 1"]),
        ("checkpoint-path: a\ncheckpoint_path: b", ["given once"]),
        ("checkpoint-path: a\ncheckpoint-path: b", ["is given twice"]),
        ("checkpoint-path: {a: b}", ["a value or a list, got a mapping"]),
        ("- a\n- b", ["mapping of options, got a list"]),
        ("text", ["mapping of options, got a str"]),
        ("a: [", ["must be YAML"]),
        ("a: !!python/object/apply:os.system ['true']", ["must be YAML"]),
        ("checkpoint-path: a\nopset-version: abc", ["--opset-version"]),
        ("checkpoint-path: a\nopset-version: 99", ["--opset-version", "30"]),
        ("", ["--checkpoint-path"]),
    ],
)
def test_file_is_refused_when_it_is_wrong(tmp_path: Path, yaml: str, words: list[str]) -> None:
    result = run(tmp_path, yaml)
    assert result.exit_code == 2
    assert all(word in result.output for word in words), result.output


def test_file_is_refused_when_it_is_missing_or_no_text(tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, ["wan", "--config", str(tmp_path / "no.yaml")])
    assert missing.exit_code == 2 and "No such file" in missing.output
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00a")
    binary = CliRunner().invoke(app, ["wan", "--config", str(tmp_path / "bad.yaml")])
    assert binary.exit_code == 2 and "must be YAML" in binary.output
