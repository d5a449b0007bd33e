"""The code stays in plain language: entries of Args begin with a noun, and retired names do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "benchmarks/slipway_benchmarks",
    "cli/slipway_cli",
    "clients/slipway_client",
    "export/slipway_export",
    "gateway/slipway_gateway",
    "loadtests/slipway_loadtests",
    "serving/slipway_serving",
    "training/slipway_recipes",
    "training/slipway_training",
)
# Prepositions, relative words, pronouns and verbs that entries used to begin with.
NOT_A_NOUN = re.compile(
    r"(of|what|whose|which|where|whether|who|how|when|as|in|on|at|by|for|from|to|with|without|after|before"
    r"|between|until|that|those|these|its|it|their|they|is|are|was|may|must|has|have|takes|within|beside|under"
    r"|over|per|than|so|if|while|into|out|since|because)\b",
    re.IGNORECASE,
)
# Classes, functions and modules that had names which only this project used.
RETIRED = set(
    """
    Arriving AsyncLeave Belongings Deaths DiedLoading Door EndRequest Footprint Going Launches Leave MadeOf
    MovableSessions NoRoom Taken Told TorchAsked UnderWay Waiting Watch are_left_on_disk are_left_out
    closed_but_to_us dies_of drain_known end_leftovers end_soon ended_by first_to_go folder_here
    from_configurations is_held_here join_claim left_on_disk loses_device made_id may_cache one_text
    open_closed runs_of said_when_full says_code_is_missing stand_in still_loading tell_restarts under_way
    unnoted was_found weigh_torch without_ranges wrongly_cached
    """.split()  # noqa: SIM905 - a word list reads best in lines
)
RETIRED_MODULES = set(
    """
    asks described footprints going held inherited kept leaving leftovers matching moved places reads room
    waiting watch
    """.split()  # noqa: SIM905
)
ENTRY = re.compile(r"^[\w.*]+(?:, [\w.*]+)*(?: \([^)]*\))?: (?P<text>.+)$")


def entries(docstring: str) -> Iterator[str]:
    """The first lines of the texts below Args and Attributes."""
    section = entry = None
    for line in docstring.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() in {"Args:", "Attributes:"}:
            section, entry = indent, None
        elif section is not None and line.strip():
            if indent <= section:
                section = None
                continue
            entry = entry or indent
            if indent == entry and (found := ENTRY.match(line.strip())):
                yield found["text"]


def begins_with_a_noun(text: str) -> bool:
    """Whether a text begins with a capitalised word that is none of the list, or with a name in quotes."""
    return not text[0].islower() and not NOT_A_NOUN.match(text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Folder of the model repository.", True),
        ("`tritonserver` process.", True),
        ("folder of the server.", False),
        ("Of the server.", False),
        ("whose answers are kept.", False),
        ("30 s by default.", True),
    ],
)
def test_noun_is_told_from_other_words(text: str, plain: bool) -> None:
    assert begins_with_a_noun(text) == plain


@pytest.mark.parametrize("package", PACKAGES)
def test_entry_of_a_docstring_begins_with_a_noun(package: str) -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    broken = [
        f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}: {text}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds)
        for text in entries(ast.get_docstring(node) or "")
        if not begins_with_a_noun(text)
    ]
    assert broken == []


def defined(module: ast.Module) -> Iterator[str]:
    """The names of the classes, functions and variables that a module defines."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_definition_is_found_for_classes_functions_and_variables() -> None:
    code = "class Door: pass\nasync def going(): x = 1\n"
    assert set(defined(ast.parse(code))) == {"Door", "going", "x"}


@pytest.mark.parametrize("package", PACKAGES)
def test_retired_name_is_not_used_again(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    again = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in {path.stem} & RETIRED_MODULES
        | {*defined(ast.parse(path.read_text(encoding="utf-8")))} & RETIRED
    ]
    assert again == []
