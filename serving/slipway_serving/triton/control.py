"""Client for the model repository interface of a running Triton, which loads models without a restart.

The server must have been started with explicit model control (`slipway serve --model-control explicit`). It
loads a new version of a model beside the old one and switches when the new one is ready, so no request fails.
If the new one cannot be loaded, the server keeps the old one. Loading a model runs its code, so callers need
a token unless only this machine can reach the endpoint.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from slipway_serving.protocol import durations
from slipway_serving.protocol.errors import InvalidRequest, NotReady
from slipway_serving.protocol.triton_identity import extensions, is_triton
from slipway_serving.triton.install.setup import runs_inside
from slipway_serving.triton.server_log import plain_reason

CONTROL_HEADER = "slipway-control"
"""Header that carries the control token."""
SUPERVISOR_HEADER = "slipway-supervisor"
"""Header that carries the supervisor's key, on a server whose models only its supervisor may change."""
_SHORT_TIMEOUT_S = 10.0
_TENSORS = [{"name": "none", "data_type": "TYPE_BOOL", "dims": [1]}]
_RELOAD_PARAMETER = "slipway_start"
# No backend has this name, so the load fails, which makes the server not ready.
_FAILING_CONFIG = json.dumps({"backend": "given_up", "input": _TENSORS, "output": _TENSORS})
# This model loads and does nothing.
_IDLE_MODEL = {
    "config": json.dumps({"backend": "python", "input": _TENSORS, "output": _TENSORS}),
    "file:1/model.py": base64.b64encode(
        b"class TritonPythonModel:\n    def execute(self, _): return []\n"
    ).decode(),
}
_STATE_PREFIX = re.compile(r"^load failed for model '[^']*': (?:version -?\d+ is at \w+ state: )?")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")


def read_token(path: Path) -> str:
    """Read a secret token from a file.

    Raises:
        InvalidRequest: The file cannot be read, or does not hold one token of 16 to 512 characters that a
            header can carry.
    """
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"token file must be a readable text file, got {path} ({error})") from None
    if not _TOKEN.fullmatch(text):
        raise InvalidRequest(
            f"token file {path} must hold 16 to 512 letters, digits or ._~+/=-, got {len(text)} characters;"
            " try `openssl rand -hex 32`"
        )
    return text


@dataclass(frozen=True)
class ModelControl:
    """Client that loads and unloads the models of one running server.

    Args:
        url: HTTP endpoint of the server, as ``host:port``.
        token: Control token of the server; None if it has none.
        header: Name of the HTTP header that carries the token.
        load_timeout_s: Longest time that one model may take to load, in seconds.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    load_timeout_s: float = 300.0
    header: str = CONTROL_HEADER

    def __post_init__(self) -> None:
        durations.check("triton", "load_timeout_s", self.load_timeout_s)
        host, _, port = self.url.rpartition(":")
        if not host or "/" in host or not port.isdigit():
            raise InvalidRequest(
                f"triton url must be HOST:PORT of its HTTP endpoint, got {self.url!r}; try localhost:8000"
            )

    def load(self, model: str) -> None:
        """Load or reload a model; the old one serves until the new one is ready.

        Raises:
            NotReady: The server cannot be reached or could not load the model; it still serves the old one
                and is as ready as before.
        """
        try:
            self._change(model, "load", {})
        except NotReady:
            with contextlib.suppress(NotReady):
                self._clear_failure(model)
            raise

    def unload(self, model: str) -> None:
        """Unload a model; do nothing if the server does not have it.

        Raises:
            NotReady: The server cannot be reached or refused the request.
        """
        self._change(model, "unload", {"parameters": {"unload_dependents": False}})

    def sync(self, repository: Path, model: str) -> None:
        """Load a model if the repository contains it, and unload it otherwise.

        Raises:
            NotReady: The request failed as for :meth:`load`.
        """
        if (repository / model).is_dir():
            self.load(model)
        else:
            self.unload(model)

    def ready_models(self) -> frozenset[str]:
        """Return the names of the models that are ready.

        Raises:
            NotReady: The server cannot be reached or refused the request.
        """
        return frozenset(self._index())

    def count_processes(self, model: str, library_backends: Collection[str]) -> int:
        """Count the processes that a model must have: 0 if it is not ready or runs inside Triton.

        The repository index cannot be used here: it omits a served model whose folder is missing.

        Args:
            model: Name of the model.
            library_backends: Backends whose models run inside Triton
                (:attr:`slipway_serving.triton.install.setup.TritonSetup.library_backends`).

        Raises:
            NotReady: The server cannot be reached or refused the request.
        """
        answer = self._send("GET", f"/v2/models/{quote(model, safe='')}", None, _SHORT_TIMEOUT_S)
        if answer.status_code in (httpx.codes.BAD_REQUEST, httpx.codes.NOT_FOUND):
            return 0
        with self._decoding("metadata"):
            versions = len(self._checked(answer).json().get("versions", ()))
        config = self._config(model)
        with self._decoding("config"):
            if runs_inside(str(config.get("backend", "")), str(config.get("runtime", "")), library_backends):
                return 0
            groups = config.get("instance_group", ())
            return sum(versions * int(group["count"]) * max(1, len(group["gpus"])) for group in groups)

    def force_reload(self, model: str, value: str) -> None:
        """Reload a served model even if its files have not changed.

        Triton keeps the instances, dead ones included, when it reloads an unchanged model. So this method
        adds a parameter to the configuration that no code reads.

        Args:
            model: Name of a served model.
            value: Value of that parameter, different in each call.

        Raises:
            NotReady: The request failed as for :meth:`load`.
        """
        config = self._config(model)
        config.setdefault("parameters", {})[_RELOAD_PARAMETER] = {"string_value": value}
        self._change(model, "load", {"parameters": {"config": json.dumps(config)}})

    def mark_failed(self, model: str) -> None:
        """Unload a model and keep the server not ready until the model is loaded again.

        Raises:
            NotReady: The server cannot be reached.
        """
        self.unload(model)
        with contextlib.suppress(NotReady):
            self._change(model, "load", {"parameters": {"config": _FAILING_CONFIG}})

    def _clear_failure(self, model: str) -> None:
        """Make Triton forget a model that never loaded.

        Triton 2.51 is not ready as long as the last load of any model failed, even after that model is
        unloaded. So this method loads an idle model under the same name and unloads it.
        """
        if not self._is_ready() and model not in self.ready_models():
            self._change(model, "load", {"parameters": _IDLE_MODEL}, _SHORT_TIMEOUT_S)
            self.unload(model)

    def _is_ready(self) -> bool:
        with contextlib.suppress(NotReady):
            return self._request("GET", "/v2/health/ready", None, _SHORT_TIMEOUT_S).is_success
        return False

    def _index(self) -> list[str]:
        """Return one model name for each ready model version."""
        answer = self._post("/v2/repository/index", {"ready": True}, _SHORT_TIMEOUT_S)
        with self._decoding("index"):
            entries = answer.json()
            if not isinstance(entries, list):
                raise TypeError(f"must be a list, got {type(entries).__name__}")
            return [str(entry["name"]) for entry in entries]

    def _config(self, model: str) -> dict[str, Any]:
        """Return a served model's configuration in Triton's JSON form."""
        answer = self._request("GET", f"/v2/models/{quote(model, safe='')}/config", None, _SHORT_TIMEOUT_S)
        with self._decoding("config"):
            return dict(answer.json())

    def _change(self, model: str, change: str, body: dict[str, Any], timeout_s: float | None = None) -> None:
        """Send the order "load" or "unload" for a model."""
        if model in ("", ".", "..") or "/" in model:
            raise InvalidRequest(f"triton {self.url}: model must be a model's name, got {model!r}")
        self._check_triton()  # Triton's answer to a change is empty, so it cannot identify the server.
        self._post(
            f"/v2/repository/models/{quote(model, safe='')}/{change}", body, timeout_s or self.load_timeout_s
        )

    def _check_triton(self) -> None:
        """Check that the server at the address is Triton.

        Raises:
            NotReady: The server cannot be reached or is not Triton.
        """
        if not is_triton(extensions(self._request("GET", "/v2", None, _SHORT_TIMEOUT_S).content)):
            raise NotReady(
                f"triton {self.url}: this address answers HTTP, but it is not Triton; try Triton's HTTP"
                " port, by default 8000"
            )

    @contextlib.contextmanager
    def _decoding(self, what: str) -> Iterator[None]:
        """Report an answer that the block cannot decode, since it is malformed or not from Triton.

        Raises:
            NotReady: The block raised a decoding error.
        """
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            self._check_triton()
            raise NotReady(
                f"triton {self.url}: the answer is malformed: {what}: {error}; see the server's log"
            ) from None

    def _post(self, path: str, body: dict[str, Any], timeout_s: float) -> httpx.Response:
        return self._request("POST", path, body, timeout_s)

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float
    ) -> httpx.Response:
        return self._checked(self._send(method, path, body, timeout_s))

    def _checked(self, answer: httpx.Response) -> httpx.Response:
        """Return the answer if it reports success; raise NotReady otherwise."""
        if answer.status_code != httpx.codes.OK:
            raise NotReady(
                f"triton {self.url}: {answer.url.path.rpartition('/')[2]} failed, got {_reason(answer)}"
            )
        return answer

    def _send(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> httpx.Response:
        """Send a request to the server and return its answer, whatever its status."""
        headers = {self.header: self.token} if self.token else {}
        try:
            # Ignore the environment's proxy: it is meant for external hosts, not for this server.
            with httpx.Client(trust_env=False, timeout=timeout_s) as client:
                return client.request(method, f"http://{self.url}{path}", json=body, headers=headers)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise NotReady(
                f"triton {self.url}: server does not answer ({reason}); check the address and the server"
            ) from None


def _reason(answer: httpx.Response) -> str:
    """Return Triton's text for a refusal, with a hint if the server does not accept the request."""
    try:
        text = str(json.loads(answer.text)["error"])
    except (ValueError, KeyError, TypeError):
        text = f"HTTP {answer.status_code}"
    text = plain_reason(_STATE_PREFIX.sub("", text))
    if SUPERVISOR_HEADER in text:
        return f"{text!r}; try `slipway serve --model-control explicit`"
    if answer.status_code in (httpx.codes.FORBIDDEN, httpx.codes.UNAUTHORIZED):
        return f"{text!r}; try the server's --control-token-file"
    return text
