"""Make pages that are written for a code host work in the site.

Pages link to files outside of `docs/` (a model card, the chart's values, a source file) by relative paths, as
a code host wants it. This hook of MkDocs adds each such file to the site as a page below `repository/`:
Markdown as it is, any other file as a block of code. It also adds the project's own documents
(CONTRIBUTING.md and the like, where they exist) to the navigation, rewrites the links, and lets long names
break.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
PROJECT = {
    "Contributing": "CONTRIBUTING.md",
    "Releasing": "docs/releasing.md",
    "Changelog": "CHANGELOG.md",
    "Reporting a vulnerability": "SECURITY.md",
    "Code of conduct": "CODE_OF_CONDUCT.md",
}
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".sh": "bash",
    ".json": "json",
}
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"(^ *(```+).*?^ *\2 *$)", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(?<!</span>)<code>([^<\n]*)</code>")
_CELL = re.compile(r"<td[ >].*?</td>", re.DOTALL)
_LONG = re.compile(r"[^\s&;]{28,}")
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


def on_config(config: Any) -> Any:
    """Add the project's own documents to the navigation."""
    there = {title: path for title, path in PROJECT.items() if (ROOT / path).is_file()}
    config.nav.append({"Project": [{title: _page(path)} for title, path in there.items()]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add each file outside of `docs/` that a page links to, and what those link to in turn."""
    from mkdocs.structure.files import File

    waiting = [path for path in PROJECT.values() if (ROOT / path).is_file() and not path.startswith("docs/")]
    waiting += [
        path
        for page in files.documentation_pages()
        for path in _outside(page.content_string, f"docs/{page.src_uri}")
    ]
    added: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in added:
            continue
        added.add(path)
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".md"):
            waiting += _outside(text, path)
            text = _FRONT_MATTER.sub("", text)
        else:
            language = LANGUAGES.get(Path(path).suffix, "text")
            text = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n```` {language}\n{text}\n````\n"
        files.append(File.generated(config, _page(path), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page that lead out of `docs/`, and all of a page that came from there."""
    here = _origin(page.file.src_uri)

    def rewritten(target: str) -> str:
        path = _target(target, here)
        if path is None or not (ROOT / path).is_file():
            return target
        link = posixpath.relpath(_page(path), posixpath.dirname(page.file.src_uri) or ".")
        anchor = urlsplit(target).fragment
        return f"{link}#{anchor}" if anchor else link

    return _each_link(markdown, rewritten)


def on_page_content(html: str, **_: Any) -> str:
    """Let long names in code break, so that tables stay narrow, and show a cell's escaped bars as bars."""
    html = _CELL.sub(lambda found: found[0].replace("\\|", "|"), html)
    return _CODE.sub(lambda found: f"<code>{_LONG.sub(_breakable, found[1])}</code>", html)


def _breakable(found: re.Match[str]) -> str:
    return re.sub(r"([_./]+)(?=[^_./])", r"\1<wbr>", found[0])


def _outside(text: str, origin: str) -> list[str]:
    found: list[str] = []

    def note(target: str) -> str:
        path = _target(target, origin)
        if path is not None and not path.startswith("docs/") and (ROOT / path).is_file():
            found.append(path)
        return target

    _each_link(text, note)
    return found


def _each_link(text: str, change: Callable[[str], str]) -> str:
    """Return the text with the target of each link outside of code blocks changed."""
    pieces = _FENCE.split(text)
    for number in range(0, len(pieces), 3):
        pieces[number] = _LINK.sub(lambda found: found[1] + change(found[2]) + found[3], pieces[number])
    # Each fence leaves two pieces: the whole block, and its marker, which is a part of it.
    return "".join(piece for number, piece in enumerate(pieces) if number % 3 != 2)


def _target(target: str, origin: str) -> str | None:
    """Return the path in the repository that a link leads to, None for an address or an anchor."""
    address = urlsplit(target)
    if address.scheme or not address.path:
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), address.path))


def _page(path: str) -> str:
    """Return the name that a file of the repository has in the site's sources."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def _origin(source: str) -> str:
    """Return the path in the repository of a page of the site."""
    if not source.startswith("repository/"):
        return f"docs/{source}"
    path = source.removeprefix("repository/")
    return path if (ROOT / path).is_file() else os.path.splitext(path)[0]  # noqa: PTH122
