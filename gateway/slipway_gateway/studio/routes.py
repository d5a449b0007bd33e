"""Routes of the studio: a page at `/` and the files that it consists of.

The files are static ES modules and style sheets of this package; nothing is built, and nothing comes from
another server. The page has no script and no style inside of itself, so its content security policy allows
files of this server only. Browsers ask for each file again and receive 304 while it stays the same, so a page
never mixes files of two versions.

A distribution adds a view of its own by an entry point of the group ``slipway.studio``: ``name =
"package.of.files"``. The files of that package are below ``/studio/families/NAME/``; `view.js` is the view.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from slipway_gateway.errors import not_found

_log = logging.getLogger(__name__)
GROUP = "slipway.studio"
PAGE, PREFIX = "index.html", "/studio/"
_NAME = re.compile(r"[a-z0-9_]{1,60}")
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "media-src 'self' blob:",
    "font-src 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)
# The header names the sockets of this server for browsers whose 'self' does not include them.
_HOST = re.compile(r"[A-Za-z0-9.\-]{1,253}(:\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:\d{1,5})?")


def router() -> APIRouter:
    """Return the routes of the page and its files."""
    routes = APIRouter(include_in_schema=False)
    added = added_assets()
    table = {**added, **assets()}
    views = [
        f"{PREFIX}{path}" for path in sorted(added) if path.count("/") == 2 and path.endswith("/view.js")
    ]

    @routes.get("/")
    async def page(request: Request) -> Response:
        return _answer(request, PAGE, table[PAGE])

    @routes.get(PREFIX + "views.json")
    async def added_views() -> Response:
        return JSONResponse({"views": views}, headers={"cache-control": "no-cache"})

    @routes.get(PREFIX + "{path:path}")
    async def asset(request: Request, path: str) -> Response:
        if path not in table or path == PAGE:
            raise not_found("file", path[:80])
        return _answer(request, path, table[path])

    return routes


def assets() -> Mapping[str, Traversable]:
    """Return the files of the studio by their paths below ``/studio/``."""
    return dict(_files(files("slipway_gateway.studio") / "assets", ""))


def added_assets() -> Mapping[str, Traversable]:
    """Return the files of views of other distributions; one that cannot be used is left out."""
    found: dict[str, Traversable] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if not _NAME.fullmatch(entry.name):
            _log.warning("the view %r of the studio needs a name of small letters, digits and _", entry.name)
            continue
        try:
            found.update(_files(files(entry.value), f"families/{entry.name}/"))
        except Exception as error:  # noqa: BLE001 - another's package may fail in any way; the page works
            _log.warning("the view %s of the studio cannot be used: %s", entry.name, error)
    return found


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    """Yield the files of a folder whose type a browser knows."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif _suffix(entry.name) in _TYPES:
            yield prefix + entry.name, entry


def _answer(request: Request, path: str, file: Traversable) -> Response:
    """Return the answer with a file, or 304 if the browser has the same bytes already."""
    data = file.read_bytes()
    headers = {
        "cache-control": "no-cache",
        "content-security-policy": _policy(request.headers.get("host", "")),
        "cross-origin-opener-policy": "same-origin",
        # Weak, since the compressed file and the plain one have the same.
        "etag": f'W/"{hashlib.sha256(data).hexdigest()[:32]}"',
        "referrer-policy": "no-referrer",
        "vary": "accept-encoding",
        "x-content-type-options": "nosniff",
    }
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        data = _compressed(data)
        headers["content-encoding"] = "gzip"
    return Response(data, media_type=_TYPES[_suffix(path)], headers=headers)


@lru_cache(maxsize=256)
def _compressed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _policy(host: str) -> str:
    """Return the content security policy of a page at a host."""
    sockets = f" ws://{host} wss://{host}" if _HOST.fullmatch(host) else ""
    return "; ".join((*_POLICY, f"connect-src 'self'{sockets}"))


def _suffix(name: str) -> str:
    return name[name.rfind(".") :] if "." in name else ""
