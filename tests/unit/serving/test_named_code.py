"""Programs that placed models name, under present and former names."""

from __future__ import annotations

import importlib
import re

import pytest

from slipway_models import FOLDER
from slipway_serving import adapter
from slipway_serving.runtime.adapter import model_class
from slipway_serving.runtime.named_code import FORMER_MODULES, load_named

NAMED = re.compile(r'"(?:program|network)" value \{ string_value: "([^"]+)"')


def test_named_program_loads_for_every_authored_model() -> None:
    names = {name for path in FOLDER.glob("*/config.pbtxt") for name in NAMED.findall(path.read_text())}
    assert len(names) >= 14
    for name in names:
        assert load_named(name).__module__ == name.partition(":")[0]


@pytest.mark.parametrize("former", sorted(FORMER_MODULES))
def test_named_module_loads_under_its_former_name(former: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(former)
    with pytest.raises(AttributeError, match="Nothing"):
        load_named(f"{former}:Nothing")


def test_named_program_is_the_same_under_its_former_name() -> None:
    name = "wan_t2v.pipeline:TextToVideo"
    assert load_named(f"slipway_serving.{name}") is load_named(f"slipway_serving.families.{name}")


def test_adapter_keeps_the_import_path_of_placed_models() -> None:
    assert adapter.model_class is model_class
