"""Facts beside a model: read into their dataclasses, or refused by key and file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.json_facts import read_facts


@dataclass(frozen=True)
class Inner:
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    late: bool = False


def written(folder: Path, content: Any) -> Path:
    path = folder / "facts.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_facts_are_dataclasses_all_the_way_down_with_defaults(tmp_path: Path) -> None:
    raw = {"name": "x", "inner": {"sizes": [1, [2, 3]]}}
    assert read_facts(Outer, written(tmp_path, raw)) == Outer("x", Inner((1, (2, 3))))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "must be the JSON file that the export writes"),
        ("[]", r"keys must be name, inner, late, got unknown \[\] and missing \['inner', 'name'\]"),
        ({"name": "x", "inner": {"sizes": [], "more": 1}}, r"facts.json: inner: keys .* unknown \['more'\]"),
        ({"name": "x", "inner": None}, r"inner: keys must be sizes, .* missing \['sizes'\]"),
    ],
)
def test_facts_are_refused_when_they_are_of_another_version(tmp_path: Path, content: Any, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        read_facts(Outer, written(tmp_path, content))


def test_facts_are_refused_when_the_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"nothing\.json: must be the JSON file"):
        read_facts(Outer, tmp_path / "nothing.json")
