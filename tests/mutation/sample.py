"""Choose the mutants of a part: every change that mutmut makes, less changes of wording, sampled by a seed.

mutmut writes all mutants of a file into one file, each as a function of its own. This module reads them from
there, finds the line of the product that each of them changes, and draws a sample.
"""

from __future__ import annotations

import ast
import difflib
import random
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from mutmut.mutation.file_mutation import MutatedFile, mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name, mangled_name_from_mutant_name

# Calls whose texts only a person reads.
_LOGGING = {"debug", "info", "warning", "error", "exception"}


@dataclass(frozen=True)
class Mutant:
    """One changed function of the product.

    Attributes:
        name: Name that mutmut knows the mutant by.
        path: File of the product, relative to the folder of its package.
        line: Number of the first line that differs, from 1.
        diff: The lines removed and added, without context.
    """

    name: str
    path: str
    line: int
    diff: str


def sample(files: Mapping[str, str], number: int, seed: str) -> list[Mutant]:
    """Draw mutants; the same seed draws the same ones as long as the code stays as it is.

    Args:
        files: Content of each file, by its path relative to the folder of its package.
        number: Number of mutants to draw; all are drawn where there are fewer.
        seed: Seed of the random numbers.
    """
    mutated = {path: mutate_file_contents(path, code) for path, code in files.items()}
    listed = [(path, function) for path in sorted(files) for function in mutated[path].mutant_names]
    random.Random(seed).shuffle(listed)
    drawn = (_mutant(path, files[path], mutated[path], function) for path, function in listed)
    found = islice((mutant for mutant in drawn if mutant is not None), number)
    return sorted(found, key=lambda mutant: (mutant.path, mutant.line, mutant.name))


def _mutant(path: str, code: str, mutated: MutatedFile, function: str) -> Mutant | None:
    """Describe a mutant, or give None where it changes only the wording of an error or of a log."""
    lines = mutated.code.splitlines()

    def source(name: str) -> list[str]:
        span = mutated.line_span_by_function_name[name]
        return lines[span.start - 1 : span.end]

    mangled = mangled_name_from_mutant_name(function)
    name = mangled.rpartition("ǁ")[2].removeprefix("x_")
    # The name of the function differs too, in its first line.
    before, after = (
        [line.replace(f"{own}(", f"{name}(") for line in source(own)]
        for own in (f"{mangled}__mutmut_orig", function)
    )
    if _without_wording(before) == _without_wording(after):
        return None
    pairs = zip_longest(before, after)
    offset = next((index for index, (old, new) in enumerate(pairs) if old != new), 0)
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "-+"]
    line = _line_of(code, mangled) + offset
    return Mutant(get_mutant_name(Path(path), function), path, line, "\n".join(changes))


def _without_wording(source: list[str]) -> str:
    """Give a function's syntax tree as text, with every text of an error and of a log left empty."""
    tree = ast.parse(textwrap.dedent("\n".join(source)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.JoinedStr) or (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOGGING
        ):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    part.value = ""
    return ast.dump(tree)


def _line_of(code: str, mangled: str) -> int:
    """Find the line where a function begins.

    Args:
        code: Content of the file.
        mangled: Name of the function as mutmut writes it: `x_name`, or `xǁClassǁname` for a method.
    """
    class_name, _, name = mangled.removeprefix("xǁ").removeprefix("x_").rpartition("ǁ")
    body: list[ast.stmt] = ast.parse(code).body
    if class_name:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == class_name)
    found = next(
        node
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    )
    return min([found.lineno, *(decorator.lineno for decorator in found.decorator_list)])
