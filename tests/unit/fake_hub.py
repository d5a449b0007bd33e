"""A hub on the loopback address: repositories are folders, and each downloaded byte is counted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_RESOLVE = re.compile(r"^/([^/]+/[^/]+)/resolve/[^/]+/(.+)$")
_MODEL = re.compile(r"^/api/models/([^/]+/[^/]+?)(?:/(revision|tree)/[^/?]+)?(?:/?\?.*)?$")


@dataclass
class FakeHub:
    """Hub with repositories by id.

    Attributes:
        repositories: Folder of each repository.
        bytes: Bytes that were downloaded, by "id/path".
        cut: Bytes after which the connection of a file's next download breaks, by "id/path".
    """

    repositories: dict[str, Path] = field(default_factory=dict)
    bytes: Counter[str] = field(default_factory=Counter)
    cut: dict[str, int] = field(default_factory=dict)
    endpoint: str = ""

    @property
    def files(self) -> set[str]:
        """Files that were downloaded, as "id/path"."""
        return set(self.bytes)

    def weights(self) -> set[str]:
        """Weight files that were downloaded, as "id/path"."""
        return {name for name in self.files if name.endswith((".safetensors", ".bin", ".pth", ".pt"))}


@contextlib.contextmanager
def serving() -> Iterator[FakeHub]:
    """Serve an empty hub while the block runs."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(head=True)

        def do_GET(self) -> None:
            self._answer(head=False)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, *, head: bool) -> None:
            if found := _RESOLVE.match(self.path):
                self._send_file(found[1], found[2], head=head)
            elif (found := _MODEL.match(self.path)) and found[1] in hub.repositories:
                self._send_json(_tree(hub, found[1]) if found[2] == "tree" else _info(hub, found[1]))
            else:
                self._send_nothing("RepoNotFound")

        def _send_file(self, hub_id: str, path: str, *, head: bool) -> None:
            file = hub.repositories.get(hub_id, Path("/nowhere")) / path
            if not file.is_file():
                self._send_nothing("EntryNotFound")
                return
            content, begin, end = file.read_bytes(), 0, file.stat().st_size
            if wanted := re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                begin = int(wanted[1])
                end = min(end, int(wanted[2]) + 1) if wanted[2] else end
            self.send_response(206 if end - begin < len(content) else 200)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("Content-Length", str(end - begin))
            if end - begin < len(content):
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
            self.end_headers()
            if head:
                return
            name = f"{hub_id}/{path}"
            limit = hub.cut.pop(name, len(content))
            sent = content[begin : min(end, begin + limit)]
            self.wfile.write(sent)
            hub.bytes[name] += len(sent)
            if begin + len(sent) < end:
                self.wfile.flush()
                self.connection.close()

        def _send_json(self, content: Any) -> None:
            text = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _send_nothing(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def use(hub: FakeHub, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Make the hub's library ask the hub, with a cache of its own."""
    from huggingface_hub import constants

    patch.setattr(constants, "ENDPOINT", hub.endpoint)
    patch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        patch.delenv(name, raising=False)
    forget()


def forget() -> None:
    """Close the library's connections, so that it reads its settings again."""
    from huggingface_hub.utils._http import close_session

    close_session()


def _paths(hub: FakeHub, hub_id: str) -> list[tuple[str, int]]:
    folder = hub.repositories[hub_id]
    return [
        (path.relative_to(folder).as_posix(), path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def _info(hub: FakeHub, hub_id: str) -> dict[str, Any]:
    return {
        "id": hub_id,
        "modelId": hub_id,
        "sha": COMMIT,
        "private": False,
        "tags": [],
        "siblings": [{"rfilename": path, "size": size} for path, size in _paths(hub, hub_id)],
    }


def _tree(hub: FakeHub, hub_id: str) -> list[dict[str, Any]]:
    return [
        {"type": "file", "path": path, "size": size, "oid": hashlib.sha1(path.encode()).hexdigest()}
        for path, size in _paths(hub, hub_id)
    ]
