"""The embedded server: the real Triton from the nvidia-pytriton wheel, started and stopped in good order.

:class:`ServerConfig` says what to serve and where. :class:`Server` checks it, lays out a backend
directory in a private folder, starts `tritonserver`, waits until every model is ready or says per model
why it is not, and on the way out lets in-flight work finish, then leaves no process, no shared memory
and no folder. A watcher (:mod:`slipway_serving.watcher`) does the same if this process is killed.
While it serves, what dies is started anew (:mod:`slipway_serving.supervision`): a model's process, and
`tritonserver` itself.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

import httpx

from slipway_serving import footprints, hidden_arguments, server_folder, stopping, triton_log
from slipway_serving.backends.onnxruntime.sharing import FOLDER_VARIABLE
from slipway_serving.control import SUPERVISOR_HEADER, ModelControl
from slipway_serving.errors import InvalidRequest, NotReady, SlipwayError, raise_all
from slipway_serving.limits import VARIABLE as LIMITS_VARIABLE
from slipway_serving.loading import Loading
from slipway_serving.places import (
    address,
    check_limits,
    check_programs_run,
    check_repository,
    check_shared_memory,
    free_ports,
)
from slipway_serving.supervision import ModelSupervisor, Supervisor
from slipway_serving.triton_arguments import (
    closed_apis,
    closed_but_to_us,
    further_problems,
    response_cache,
    tracing,
    tracing_problems,
)
from slipway_serving.triton_install import environment, find_triton, lay_out_backends, lay_out_interpreter
from slipway_serving.triton_process import ID_VARIABLE, Belongings, end_processes, sweep
from slipway_serving.watcher import start_watcher

ModelControlMode = Literal["none", "explicit"]
_MIB = 1 << 20
# Eight prompts of 512 tokens of width 4096, or a hundred of the usual 40.
_RESPONSE_CACHE_MIB = 64
_POLL_S = 0.05
_PORT_ATTEMPTS = 3


@dataclass(frozen=True)
class ServerConfig:
    """What to serve and where.

    Attributes:
        repository: the model repository, a folder of model folders.
        host: address to listen on; other machines reach the server only by another than 127.0.0.1.
        http_port: 0 picks a free one, as for the other two.
        grpc_port: see `http_port`.
        metrics_port: see `http_port`.
        exit_timeout_s: seconds that in-flight requests are given when the server is stopped.
        ready_timeout_s: seconds that all models together have to load.
        exit_on_error: whether one model that fails to load fails the start.
        model_control: "none" serves what the repository held at the start; "explicit" also takes orders to
            load and unload models while it runs.
        control_token: what such orders must carry (see :mod:`slipway_serving.control`), and any other use of
            the APIs that change the server (:data:`slipway_serving.triton_arguments.CLOSED_APIS`); None is a
            key of the server's own, anew for each.
        response_cache_mib: MiB of answers that are kept for equal requests, of models whose configuration
            allows it; 0 keeps none. None is 64, and 0 with explicit model control, where a model may be
            loaded anew: Triton 2.51 would go on answering from what the old one said.
        trace_otlp: OTLP endpoint over HTTP that gets traces of requests; None traces nothing.
        trace_every: one request in this many is traced.
        log_verbose: Triton's verbosity, 0 or more.
        limits: file of what requests may ask for at most, see :mod:`slipway_serving.limits`; None has none
            beside the models' own.
        log_path: where the log goes and stays; None keeps it only when something failed.
        arguments: further arguments of `tritonserver`, e.g. `--rate-limit=execution_count`, but none that
            follow from the above.
    """

    repository: Path
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    exit_timeout_s: int = 30
    ready_timeout_s: float = 600.0
    exit_on_error: bool = True
    model_control: ModelControlMode = "none"
    control_token: str | None = field(default=None, repr=False)
    response_cache_mib: int | None = None
    trace_otlp: str | None = None
    trace_every: int = 1
    log_verbose: int = 0
    limits: Path | None = None
    log_path: Path | None = None
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be a port number 0 to 65535, got {port}"
            for name, port in self.ports.items()
            if not 0 <= port <= 65535
        ]
        given = [port for port in self.ports.values() if port]
        if len(set(given)) < len(given):
            problems.append(f"ports must be three different ones, got {given}")
        for name in ("exit_timeout_s", "ready_timeout_s", "log_verbose"):
            if getattr(self, name) < 0:
                problems.append(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.model_control not in get_args(ModelControlMode):
            problems.append(
                f"model_control must be one of {', '.join(get_args(ModelControlMode))}, got"
                f" {self.model_control!r}"
            )
        cache_mib = self.response_cache_mib or 0
        if cache_mib < 0 or (cache_mib and self.model_control != "none"):
            problems.append(
                "response_cache_mib must be 0 or more, and 0 with explicit model control (Triton would answer"
                f" for a model from before it was loaded anew), got {cache_mib}"
            )
        problems += tracing_problems(self.trace_otlp, self.trace_every)
        problems += further_problems(self.arguments)
        raise_all("server", problems)

    @property
    def response_cache_bytes(self) -> int:
        """What the cache of answers may hold; 0 without one."""
        default = _RESPONSE_CACHE_MIB if self.model_control == "none" else 0
        return (default if self.response_cache_mib is None else self.response_cache_mib) * _MIB

    @property
    def ports(self) -> dict[str, int]:
        """The three ports by field name."""
        return {
            "http_port": self.http_port,
            "grpc_port": self.grpc_port,
            "metrics_port": self.metrics_port,
        }


class Server:
    """One running Triton. Use it as a context manager, or call :meth:`start` and :meth:`stop`.

    Args:
        config: what to serve and where.
        say: called with a line for each step of a start: which models are loading and how far; or nothing.
        warn: called with a line for each death of a process and what came of it; the log has them too.

    Attributes:
        config: what was asked for; after :meth:`start` with the ports and the address that were picked.
        log_path: the server's log file.
        control_token: what the APIs that change the server need: the configuration's, or this server's own.
        token_hidden: whether the running server's command line is without it.
    """

    def __init__(
        self,
        config: ServerConfig,
        say: Callable[[str], object] | None = None,
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.config = config
        self._say, self._warn = say, warn
        self.control_token = config.control_token or secrets.token_urlsafe(32)
        self.token_hidden = True
        self._key = secrets.token_urlsafe(32)
        self._id = f"slipway-{os.getpid()}-{secrets.token_hex(4)}-"
        self.log_path = config.log_path or Path(tempfile.gettempdir()) / f"{self._id}tritonserver.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._belongings: Belongings | None = None
        self._supervisor: Supervisor | None = None
        self._log_start = 0

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def http_url(self) -> str:
        """`host:port` of the HTTP endpoint, as tritonclient takes it."""
        return f"{_reachable(self.config.host)}:{self.config.http_port}"

    @property
    def grpc_url(self) -> str:
        """`host:port` of the gRPC endpoint."""
        return f"{_reachable(self.config.host)}:{self.config.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """URL of the Prometheus metrics."""
        return f"http://{_reachable(self.config.host)}:{self.config.metrics_port}/metrics"

    @property
    def pid(self) -> int | None:
        """Process id of `tritonserver`; None before the start."""
        return self._process.pid if self._process else None

    @property
    def server_id(self) -> str:
        """What names this server's processes and shared memory, see :mod:`slipway_serving.triton_process`."""
        return self._id

    @property
    def control_token_file(self) -> Path | None:
        """Where the running server's own key lies, for its user alone; None where a token was given."""
        if self._belongings is None or self.config.control_token is not None:
            return None
        return Path(self._belongings.folder) / "control-token"

    def is_alive(self) -> bool:
        """Return whether the `tritonserver` process runs."""
        return self._process is not None and self._process.poll() is None

    def log_text(self) -> str:
        """Return the log so far."""
        return triton_log.text(self.log_path)

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the log."""
        return triton_log.tail(self.log_path, lines)

    def models(self) -> list[str]:
        """Return the names of the models that are ready."""
        return sorted(self._control.ready_models())

    def start(self) -> None:
        """Start the server and return when it is ready.

        Raises:
            InvalidRequest: the repository or a port cannot be used; nothing was started.
            NotReady: Triton is not installed, a model failed to load, the time ran out; nothing is left
                running and the message names each failed model, the reason and the log file.
        """
        if self._process is not None:
            raise InvalidRequest("server: start must be called once, got a second call; try a new Server")
        models = check_repository(self.config.repository)
        if self.config.limits is not None:
            check_limits(self.config.limits, models)
        check_shared_memory(len(models))
        check_programs_run(Path(tempfile.gettempdir()))
        wanted, self._supervisor = self.config, None
        for attempt in range(_PORT_ATTEMPTS):
            ports = free_ports(wanted.host, wanted.ports)
            self.config = replace(
                wanted,
                host=address(wanted.host),
                http_port=ports["http_port"],
                grpc_port=ports["grpc_port"],
                metrics_port=ports["metrics_port"],
            )
            try:
                self._lay_out()
                self._launch()
                self._wait_until_ready(models)
            except BaseException as error:
                # A port that was free when it was picked may be taken by now; only ours to pick again.
                again = (
                    isinstance(error, _PortTaken)
                    and self.config.ports != wanted.ports
                    and attempt + 1 < _PORT_ATTEMPTS
                )
                self._end(keep_log=isinstance(error, Exception) and not again)
                if not again:
                    raise
            else:
                self._supervisor = Supervisor(
                    lambda: self._process,
                    lambda: self._look_after(models),
                    lambda: self._restart(models),
                    self._tell,
                )
                return

    def stop(self) -> None:
        """Stop the server: in-flight work may finish within `exit_timeout_s`, then nothing is left.

        Calling it again, or without a start, does nothing.
        """
        if self._process is None or self._belongings is None:
            return
        crashed = self.failure is not None
        try:
            if self.is_alive():
                stopping.finish_pipelines(self._belongings)
            if self._supervisor is not None:
                self._supervisor.close()
            if self.is_alive():
                stopping.end(self._belongings)
        finally:
            self._end(keep_log=crashed)

    @property
    def failure(self) -> SlipwayError | None:
        """Why the server ended by itself and is not started anew; None as long as that is not so."""
        return self._supervisor.failure if self._supervisor is not None else None

    @property
    def _control(self) -> ModelControl:
        """Orders to the server: by its token where others may give some, else by our own key."""
        limit_s = max(self.config.ready_timeout_s, 1.0)
        if self.config.model_control == "explicit":
            return ModelControl(self.http_url, self.control_token, limit_s)
        return ModelControl(self.http_url, self._key, limit_s, SUPERVISOR_HEADER)

    def _restart(self, models: Sequence[Path]) -> bool:
        """Start `tritonserver` anew after its death; return whether it serves."""
        assert self._belongings is not None
        assert self._supervisor is not None
        if self._watcher is not None:
            self._watcher.kill()  # in good order it would take the server's folder with it
            self._watcher.wait()
        end_processes(self._belongings.server_id)
        restarts = footprints.count_restart(self._belongings.footprints)
        started_s = time.monotonic()
        try:
            self._launch()
            self._wait_until_ready(models)
        except (SlipwayError, OSError, RuntimeError) as error:
            if not self._supervisor.closing.is_set():
                self._tell("server_start_failed", reason=str(error))
                end_processes(self._belongings.server_id)
            return False
        self._tell("server_restarted", restarts=restarts, after_s=round(time.monotonic() - started_s, 3))
        return True

    def _look_after(self, models: Sequence[Path]) -> ModelSupervisor:
        """Return what looks after the models of the `tritonserver` that runs now."""
        assert self._belongings is not None
        names = [model.name for model in models]
        pid, left = self._belongings.pid, self._belongings.footprints
        return ModelSupervisor(pid, names, self._control, left, self._tell)

    def _tell(self, event: str, **facts: Any) -> None:
        """Write an event of supervision to the log, and hand it on in words."""
        triton_log.record(self.log_path, event, **facts)
        told = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "log")
        self._warn(f"{event.replace('_', ' ')}: {told}")

    def _lay_out(self) -> None:
        """Make the server's private folder: its backends, their interpreter, and what its models share."""
        install = find_triton()
        folder = Path(tempfile.mkdtemp(prefix=self._id))
        self._belongings = Belongings(
            self._id, str(folder), pid=0, exit_timeout_s=self.config.exit_timeout_s, log=str(self.log_path)
        )
        (folder / "graphs").mkdir()
        self._belongings.footprints.mkdir()
        lay_out_backends(install, folder / "backends")
        lay_out_interpreter(folder / "interpreter", os.environ)
        if (key_file := self.control_token_file) is not None:
            key_file.touch(mode=0o600)
            key_file.write_text(f"{self.control_token}\n", encoding="ascii")
        self.log_path.write_bytes(b"")

    def _launch(self) -> None:
        """Start `tritonserver` and its watcher."""
        assert self._belongings is not None
        install, folder = find_triton(), Path(self._belongings.folder)
        self._log_start = len(self.log_text())
        with self.log_path.open("ab") as log:  # appended to, as the watcher empties it when it is long
            # In a session of its own: a terminal's Ctrl-C is for us, and we stop it in good order.
            self._process, self.token_hidden = hidden_arguments.start(
                [str(install.binary), *self._arguments(folder / "backends", install.caches)],
                tuple(self._closed_apis()),
                env={
                    **environment(install, folder / "interpreter", os.environ),
                    ID_VARIABLE: self._id,
                    FOLDER_VARIABLE: str(folder / "graphs"),
                    footprints.FOLDER_VARIABLE: str(self._belongings.footprints),
                    server_folder.FOLDER_VARIABLE: str(self._belongings.requests),
                    **({LIMITS_VARIABLE: str(self.config.limits.resolve())} if self.config.limits else {}),
                },
                cwd=folder,  # stubs look for modules in their working directory first
                log=log,
            )
            self._belongings = replace(self._belongings, pid=self._process.pid)
            self._watcher = start_watcher(self._belongings, log)

    def _closed_apis(self) -> Iterator[str]:
        """Return the arguments that close the administrative APIs; they hold secrets."""
        if self.config.model_control == "explicit":
            return closed_apis(self.control_token)
        return closed_but_to_us(self._key, self.control_token)

    def _arguments(self, backends: Path, caches: Path) -> Iterator[str]:
        """Yield the arguments of `tritonserver` that anybody may see."""
        config = self.config
        yield f"--model-repository={config.repository.resolve()}"
        yield f"--backend-directory={backends}"
        yield f"--backend-config=python,shm-region-prefix-name={self._id}"
        for service in ("http", "grpc", "metrics"):
            yield f"--{service}-address={config.host}"
            yield f"--{service}-port={config.ports[f'{service}_port']}"
        yield f"--exit-timeout-secs={config.exit_timeout_s}"
        yield f"--exit-on-error={str(config.exit_on_error).lower()}"
        yield f"--log-verbose={config.log_verbose}"
        # Of use to the supervisor whether or not others may give orders.
        yield "--model-control-mode=explicit"
        yield "--load-model=*"
        if config.response_cache_bytes:
            yield from response_cache(caches, config.response_cache_bytes)
        if config.trace_otlp is not None:
            yield from tracing(config.trace_otlp, config.trace_every)
        yield from config.arguments

    def _wait_until_ready(self, models: Sequence[Path]) -> None:
        """Poll until the server answers ready; raise NotReady as soon as it cannot become so."""
        # Endpoints open when all models have loaded or failed. Without exit_on_error a failed model would
        # keep `ready` false for ever; `live` is then what there is to wait for.
        endpoint = "ready" if self.config.exit_on_error else "live"
        deadline = time.monotonic() + self.config.ready_timeout_s
        loading = Loading(models, self._id, self._say) if self._say is not None else None
        # One client for all looks: to make one takes longer than to wait between two. A proxy of the
        # environment is for the world outside, not for a server of our own.
        with httpx.Client(base_url=f"http://{self.http_url}", timeout=2, trust_env=False) as client:
            while not _answers(client, f"/v2/health/{endpoint}"):
                log = self.log_text()[self._log_start :]
                if self._supervisor is not None and self._supervisor.closing.is_set():
                    raise NotReady("server: it was stopped before it was ready")
                if loading is not None:
                    loading.look(log)
                if not self.is_alive():
                    raise self._start_error(log)
                if "Failed to preinitialize Python stub" in log and self.config.exit_on_error:
                    raise self._start_error(log)
                if time.monotonic() > deadline:
                    waiting = ", ".join(triton_log.still_loading(log)) or "none, but it does not answer"
                    raise NotReady(
                        f"server: models must load within {self.config.ready_timeout_s:g} s, still loading: "
                        f"{waiting}; log: {self.log_path}"
                    )
                time.sleep(_POLL_S)
        if loading is not None:
            loading.look(self.log_text()[self._log_start :])

    def _start_error(self, log: str) -> NotReady:
        """Say why the server could not start: per failed model, else in Triton's words."""
        failures = triton_log.load_failures(log)
        if failures:
            lines = "".join(f"\n  {model}: {reason}" for model, reason in failures.items())
            return NotReady(
                f"server: {len(failures)} model(s) failed to load:{lines}\n  log: {self.log_path}"
            )
        reason = triton_log.fatal(log) or self.log_tail(5)
        error = _PortTaken if "already in use" in reason else NotReady
        code = self._process.poll() if self._process else None
        return error(f"server: tritonserver ended with code {code}: {reason}\n  log: {self.log_path}")

    def _end(self, *, keep_log: bool) -> None:
        """Kill what is left, free what it held, and let the watcher go."""
        process, watcher, belongings = self._process, self._watcher, self._belongings
        self._process = self._watcher = self._belongings = None
        if belongings:
            sweep(belongings)
        if process:
            process.wait()
        if watcher and watcher.stdin:
            watcher.stdin.close()
            watcher.wait()
        if not keep_log and self.config.log_path is None:
            for path in (self.log_path, self.log_path.with_name(f"{self.log_path.name}.1")):
                path.unlink(missing_ok=True)


class _PortTaken(NotReady):
    """Another process took a port between our look and Triton's."""


def _reachable(host: str) -> str:
    """Return an address that reaches a server on this machine that listens on `host`."""
    return "127.0.0.1" if host == "0.0.0.0" else host


def _answers(client: httpx.Client, path: str) -> bool:
    """Return whether a path of the client's server answers 200."""
    try:
        return client.get(path).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
