"""Show the Sphinx roles and the examples of docstrings as Markdown does.

Docstrings name other objects by roles such as ``:class:`Client` `` and show examples at the prompt `>>>`.
This extension of Griffe, which reads the docstrings for the API reference, turns the names into code and the
examples into blocks of code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:py:)?(?:class|meth|func|attr|data|mod|exc):`~?([^`<]+?)(?:\(\))?`")
_EXAMPLE = re.compile(r"(?:^ *(?:>>>|\.\.\.).*\n?)+", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Rewrite the docstring of each object of a package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite the docstrings of a package that Griffe has read."""
        waiting: list[griffe.Object | griffe.Alias] = [pkg]
        while waiting:
            each = waiting.pop()
            if each.is_alias:
                continue
            if each.docstring is not None:
                each.docstring.value = plain(each.docstring.value)
            waiting += each.members.values()


def plain(text: str) -> str:
    """Return a docstring with its roles as code and its examples as blocks of code."""
    return _EXAMPLE.sub(_block, _ROLE.sub(lambda found: f"`{_short(found[1])}`", text))


def _short(name: str) -> str:
    """Return a name without its modules: `Client.stream` of `slipway_client.client.Client.stream`."""
    parts = name.split(".")
    first = next(
        (number for number, part in enumerate(parts) if part.lstrip("_")[:1].isupper()), len(parts) - 1
    )
    return ".".join(parts[first:])


def _block(found: re.Match[str]) -> str:
    lines = [re.sub(r"^ *(?:>>>|\.\.\.) ?", "", line) for line in found[0].rstrip("\n").split("\n")]
    return "\n".join(["```python", *lines, "```", ""])
