"""The registry of families: ours, and those that other distributions register."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipway_cli import root
from slipway_export.families import BUILT_IN, GROUP, families, family_named, registered
from slipway_serving.protocol.errors import InvalidRequest

MODULE = """
from dataclasses import replace
from slipway_export.families.airimu import family as airimu
FAMILY = replace(airimu.FAMILY, name="{name}", summary="from outside")
NOTHING = 3
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution that registers a family, as pip leaves it."""

    def make(name: str, value: str = "outside_family:FAMILY") -> None:
        info = tmp_path / "outside_slipway-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-slipway\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {value}\n")
        (tmp_path / "outside_family.py").write_text(MODULE.format(name=name))
        monkeypatch.syspath_prepend(str(tmp_path))
        registered.cache_clear()

    yield make
    sys.modules.pop("outside_family", None)
    monkeypatch.undo()
    registered.cache_clear()


def test_own_families_come_first_when_listed() -> None:
    assert families()[: len(BUILT_IN)] == BUILT_IN
    assert {known.origin for known in registered()[: len(BUILT_IN)]} == {"slipway-triton"}


def test_family_from_outside_is_used_and_its_origin_shown_when_installed(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("outside")
    assert family_named("outside").summary == "from outside"
    assert root.run(["families"]) == 0
    assert "outside: from outside\n  from        outside-slipway 1.2\n" in capsys.readouterr().out
    assert root.run(["families", "--json"]) == 0
    found = {known["name"]: known for known in json.loads(capsys.readouterr().out)["families"]}
    assert [*found] == [family.name for family in families()]
    outside = found["outside"]
    assert (outside["summary"], outside["origin"]) == ("from outside", "outside-slipway 1.2")
    assert outside["served"] == list(family_named("airimu").served)
    assert outside["presets"] == found["airimu"]["presets"] and "tiny" in outside["presets"]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("broken", "outside_family:MISSING", "AttributeError"),
        ("broken", "no_such_module:FAMILY", "ModuleNotFoundError"),
        ("broken", "outside_family:NOTHING", "must be a Family, got int"),
        ("airimu", "outside_family:FAMILY", "airimu is taken by slipway-triton"),
    ],
)
def test_family_is_left_out_with_its_reason_when_it_cannot_be_used(
    name: str, value: str, problem: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(name, value)
    assert families() == BUILT_IN
    assert root.run(["families"]) == 0
    out = capsys.readouterr().out
    assert f"{name}: not available: " in out and problem in out and "outside-slipway 1.2" in out
    assert root.run(["families", "--json"]) == 0
    last = json.loads(capsys.readouterr().out)["families"][-1]
    assert (last["name"], last["origin"]) == (name, "outside-slipway 1.2")
    assert problem in last["problem"]


def test_reason_is_told_when_a_family_that_did_not_load_is_asked_for(install: Install) -> None:
    install("broken", "no_such_module:FAMILY")
    with pytest.raises(InvalidRequest, match=r"got 'broken' \(outside-slipway 1.2: .*no_such_module"):
        family_named("broken")
