"""The tables of fields in the documents say what the statements say, and their markers are checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from slipway_export.tables import END, filled, table, write
from slipway_serving.families.airimu.request import Corrections
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.fields import BATCH, Array, Image, Rule
from slipway_serving.protocol.requests import Request

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARKER = "<!-- fields: slipway_serving.families.airimu.request:Corrections -->\n"


def rule(must: str, **more: Any) -> Rule:
    return Rule(must, lambda _: True, lambda _: "", "what it is", **more)


@dataclass(frozen=True)
class Sample(Request):
    model: ClassVar[str] = "sample"

    steering: Annotated[NDArray[np.float32], Array("float32", ("turns", 2), "left | right", low=-1, high=1)]
    image: Annotated[bytes, Image("first frame")]
    text: Annotated[str, rule("a text")] = ""
    form: Annotated[str, rule("one of a, b")] = "a"
    preview: Annotated[bool, rule("true or false")] = False
    seed: Annotated[int, rule("0 to 9")] = 0
    shift: Annotated[float | None, rule("above 0")] = None
    scale: Annotated[float | None, rule("above 0", default="the checkpoint's")] = None


@dataclass(frozen=True)
class Batched(Request):
    model: ClassVar[str] = "batched"

    names: Annotated[NDArray[np.object_], Array("text", (BATCH, "names"), "names")]
    pause_ms: Annotated[int, rule("0 or more")] = 5


def test_table_says_type_rule_default_and_meaning_of_each_field() -> None:
    assert table(Sample).splitlines() == [
        "| field | type, shape | rule | default | meaning |",
        "| --- | --- | --- | --- | --- |",
        r"| `steering` | FP32 [turns, 2] | within -1 to 1 | required | left \| right |",
        "| `image` | BYTES: a file, or base64 text of it | a PNG, JPEG or WebP file of 16 to 4096 px a side"
        " and at most 32 MiB, without transparency | required | first frame |",
        "| `text` | BYTES | a text | empty | what it is |",
        "| `form` | BYTES | one of a, b | `a` | what it is |",
        "| `preview` | BOOL | true or false | false | what it is |",
        "| `seed` | INT64 | 0 to 9 | 0 | what it is |",
        "| `shift` | FP32 | above 0 | none | what it is |",
        "| `scale` | FP32 | above 0 | the checkpoint's | what it is |",
    ]
    assert table(Batched).splitlines()[2:] == [
        "| `names` | BYTES [batch, names] |  | required | names |",
        "| `pause_ms` | INT64 [1, 1] | 0 or more | 5 | what it is |",
    ]


def test_table_of_an_event_has_no_rules() -> None:
    assert table(Corrections).splitlines()[:3] == [
        "| field | type, shape | meaning |",
        "| --- | --- | --- |",
        "| `corrected_acc` | FP32 [batch, frames, 3] | acc plus correction_acc, m/s² |",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_the_tables_of_the_statements(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text, page.name) == text, "make docs writes them anew"


def test_every_family_page_with_fields_has_markers() -> None:
    marked = {page.stem for page in PAGES if "<!-- fields:" in page.read_text(encoding="utf-8")}
    assert marked == {page.stem for page in (ROOT / "docs/reference/families").glob("*.md")}


def test_pages_are_written_only_where_a_table_changed(tmp_path: Path) -> None:
    stale, plain = tmp_path / "stale.md", tmp_path / "plain.md"
    stale.write_text(f"before\n{MARKER}| old |\n{END}\nbetween\n{MARKER}{END}\nafter\n", encoding="utf-8")
    plain.write_text("no table\n", encoding="utf-8")
    assert write([stale, plain]) == [stale]
    expected = f"{MARKER}{table(Corrections)}{END}\n"
    assert stale.read_text(encoding="utf-8") == f"before\n{expected}between\n{expected}after\n"
    assert write([stale, plain]) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (MARKER, "must be followed by a line"),
        (f"{MARKER}{END}\n{MARKER}", "must be followed by a line"),
        (f"<!-- fields: nowhere.at_all:Class -->\n{END}\n", "got nowhere.at_all:Class .No module named"),
        (
            f"<!-- fields: slipway_serving.protocol.fields:None -->\n{END}\n",
            "got slipway_serving.protocol.fields:None",
        ),
        (
            f"<!-- fields: slipway_serving.protocol.fields:Array -->\n{END}\n",
            "fields must name a request or event as package.module:Class",
        ),
    ],
)
def test_marker_is_refused_when_it_has_no_end_or_names_no_fields(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=f"page.md: .*{problem}"):
        filled(text, "page.md")
