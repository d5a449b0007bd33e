"""What a graph is made by, as a hash: its description, the options, the versions and the code.

A description is data down to what its functions hold: a `load` that is made with a part's name is told from
one made with another's. Files are no part of it (`reads.py` has them), so that the same checkpoint in another
place gives the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Set
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from slipway_export.checkpoint import Checkpoint
from slipway_export.repository import library_versions
from slipway_serving import int8_products

_OWN = ("slipway_export", "slipway_serving")


def identity(described: object, options: Mapping[str, object]) -> str:
    """Return a hash that is another where a graph might be: sha256, hexadecimal.

    Args:
        described: a component, or whatever a piece of work is described by.
        options: of the export, by name: those that what is made depends on.
    """
    seen = _Described()
    content = {"described": seen.of(described), "options": seen.of(dict(options))}
    versions = library_versions()
    # INT8 weights depend on what this processor multiplies exactly.
    content["int8_largest_weight"] = int8_products.largest_exact_weight()
    packages = {*_OWN, *seen.packages} - versions.keys() - sys.stdlib_module_names
    content |= {"versions": versions, "code": {name: _code(name) for name in sorted(packages)}}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def _code(package: str) -> str:
    """Return a hash of a package's sources: a development checkout has one version for many of them."""
    source = getattr(sys.modules.get(package), "__file__", None)
    if source is None:
        return ""
    path = Path(source)
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.relative_to(path.parent).as_posix()}\n".encode() + file.read_bytes())
    return found.hexdigest()


class _Described:
    """Values as what JSON can say of them; `packages` are those whose functions were met."""

    def __init__(self) -> None:
        self.packages: set[str] = set()
        self._around: list[int] = []

    def of(self, value: Any) -> Any:
        """Describe a value by its data; what is no data only by its class."""
        if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
            return value
        if id(value) in self._around:  # a function that calls itself
            return "again"
        self._around.append(id(value))
        try:
            return self._compound(value)
        finally:
            self._around.pop()

    def _compound(self, value: Any) -> Any:  # noqa: PLR0911  (a table of kinds)
        name = self._named(value if isinstance(value, type | FunctionType) else type(value))
        if isinstance(value, type):
            return name
        if isinstance(value, Enum):
            return [name, value.value]
        if isinstance(value, Mapping):
            return sorted(
                ([str(key), self.of(each)] for key, each in value.items()), key=lambda pair: pair[0]
            )
        if isinstance(value, list | tuple):
            return [self.of(each) for each in value]
        if isinstance(value, Set):
            return sorted(json.dumps(self.of(each)) for each in value)
        if isinstance(value, np.ndarray):
            content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            return [name, str(value.dtype), list(value.shape), content]
        if isinstance(value, partial):
            return [self.of(value.func), self.of(value.args), self.of(value.keywords)]
        if isinstance(value, MethodType):
            return [self.of(value.__func__), self.of(value.__self__)]
        if isinstance(value, FunctionType):
            return [name, self._held(value)]
        if dataclasses.is_dataclass(value) and not isinstance(value, Checkpoint):
            return [name, {f.name: self.of(getattr(value, f.name)) for f in dataclasses.fields(value)}]
        return name

    def _held(self, function: FunctionType) -> Any:
        """Describe what a function has beyond its code: its defaults, and the variables around it."""
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        around = {name: self._content(cell) for name, cell in cells}
        return [around, self.of(function.__defaults__), self.of(function.__kwdefaults__)]

    def _content(self, cell: Any) -> Any:
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # not yet assigned
            return None

    def _named(self, kind: type | Callable[..., Any]) -> str:
        if isinstance(kind, FunctionType):
            self.packages.add(kind.__module__.partition(".")[0])
        return f"{kind.__module__}.{kind.__qualname__}"
