"""The documents' links and anchors lead somewhere, and their tables have whole rows.

`make site` checks the links of the site too; this test needs nothing but the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("training/slipway_demo/*/*.md")]
)
_FENCE = re.compile(r"^ *(`{3,}).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as code hosts and the site name them."""
    found: list[str] = []
    for title in re.findall(r"^#{1,6} (.*)$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(f"{anchor}_{found.count(anchor)}" if anchor in found else anchor)
    return frozenset(found)


def broken_links(page: Path) -> Iterator[str]:
    """Yield the relative links of a page that lead to no file or no heading."""
    for link in _LINK.findall(_CODE.sub("", prose(page))):
        address = urlsplit(link)
        if address.scheme:
            continue
        target = (page.parent / unquote(address.path)).resolve() if address.path else page
        if not target.is_file() or (address.fragment and address.fragment not in anchors(target)):
            yield link


def uneven_rows(page: Path) -> Iterator[str]:
    """Yield the rows of a page's tables that have more or fewer cells than the table's first row."""
    cells = 0
    for line in prose(page).splitlines():
        row = line.strip()
        if not row.startswith("|"):
            cells = 0
            continue
        count = len(re.findall(r"(?<!\\)\|", row))
        cells = cells or count
        if count != cells or not row.endswith("|"):
            yield row


def joined_blocks(page: Path) -> Iterator[str]:
    """Yield the first lines of lists and tables that follow a paragraph without an empty line.

    A code host shows them as lists and tables; the site would show them as text.
    """
    before = ""
    for line in prose(page).splitlines():
        item = re.match(r"(?:- |\d+\. )", line)
        inside = re.match(r"(?:- |\d+\. | )", before)
        if (item and before and not inside and before[0] != "#") or (
            line.startswith("|") and before and before[0] not in "|<#"
        ):
            yield line
        before = line


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of_a_page_lead_to_files_and_headings(page: Path) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_rows_of_a_table_have_as_many_cells_as_its_head(page: Path) -> None:
    assert list(uneven_rows(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lists_and_tables_of_a_page_follow_an_empty_line(page: Path) -> None:
    assert list(joined_blocks(page)) == []


def test_broken_links_and_rows_are_found_when_there_are_some(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `name`: one\n[a](#a-name-one) [b](#none) [c](page.md) [d](none.md) `[e](none.md)`\n\n"
        "```\n[f](none.md)\n| a |\n```\n| a | b |\n|---|---|\n| 1 | `x\\|y` |\n| 1 |\n| 1 | 2\n"
    )
    assert list(broken_links(page)) == ["#none", "none.md"]
    assert list(uneven_rows(page)) == ["| 1 |", "| 1 | 2"]
    page.write_text("text\n- a\n- b\n  c\n- d\n\ntext\n| a |\n| - |\n\n- e\n")
    assert list(joined_blocks(page)) == ["- a", "| a |"]


def test_readme_is_short_enough_to_be_read() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
