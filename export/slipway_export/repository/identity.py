"""Hash of everything that determines a graph except files: description, options, versions and code.

The hash covers a description's data down to the variables and defaults of its functions: a `load` created
for one part's name differs from one for another. Checkpoint files are not covered (`checkpoint/provenance.py`
records them), so that the same checkpoint in another location has the same hash.
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

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.repository.publish import library_versions
from slipway_serving.runtime.backends.onnxruntime import int8_products

_OWN = ("slipway_export", "slipway_serving")


def identity(described: object, options: Mapping[str, object]) -> str:
    """Return a hash that changes whenever the resulting graph might change: sha256, hexadecimal.

    Args:
        described: Component, or any other description of a piece of work.
        options: Options of the export that influence the result, by name.
    """
    seen = _Described()
    content = {"described": seen.of(described), "options": seen.of(dict(options))}
    versions = library_versions()
    # INT8 weights depend on the largest weight whose products this processor computes exactly.
    content["int8_largest_weight"] = int8_products.largest_exact_weight()
    packages = {*_OWN, *seen.packages} - versions.keys() - sys.stdlib_module_names
    content |= {"versions": versions, "code": {name: _code(name) for name in sorted(packages)}}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def _code(package: str) -> str:
    """Return a hash of a package's sources, since a development checkout changes under one version."""
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
    """Conversion of values to JSON; `packages` collects the packages of all functions seen."""

    def __init__(self) -> None:
        self.packages: set[str] = set()
        self._around: list[int] = []

    def of(self, value: Any) -> Any:
        """Describe a value by its data, or only by its class if it is no data."""
        if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
            return value
        if id(value) in self._around:  # A recursive function contains itself.
            return "again"
        self._around.append(id(value))
        try:
            return self._compound(value)
        finally:
            self._around.pop()

    def _compound(self, value: Any) -> Any:  # noqa: PLR0911  (a table of kinds)
        """Describe a value that consists of other values."""
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
        """Describe a function's closure variables and its defaults."""
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        around = {name: self._content(cell) for name, cell in cells}
        return [around, self.of(function.__defaults__), self.of(function.__kwdefaults__)]

    def _content(self, cell: Any) -> Any:
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # The variable is not yet assigned.
            return None

    def _named(self, kind: type | Callable[..., Any]) -> str:
        if isinstance(kind, FunctionType):
            self.packages.add(kind.__module__.partition(".")[0])
        return f"{kind.__module__}.{kind.__qualname__}"
