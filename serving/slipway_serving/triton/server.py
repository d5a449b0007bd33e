"""Server that starts, supervises and stops a Triton: that of the nvidia-pytriton wheel, or an installed one.

:class:`ServerConfig` says what to serve and where. :class:`Server` checks it, creates a backend directory in
a private folder, starts `tritonserver`, and waits until every model is ready or reports per model why it is
not. When it stops, it lets in-flight work finish, or has videos stop at a step boundary, and then removes
every process, shared memory region and folder of the server. A watcher
(:mod:`slipway_serving.triton.watcher`) does the same if this process is killed. While the server runs,
:mod:`slipway_serving.triton.supervision` restarts model processes and `tritonserver` itself when they die.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from slipway_serving.protocol.errors import InvalidRequest, NotReady, SlipwayError
from slipway_serving.runtime.backends.onnxruntime.sharing import GRAPHS_FOLDER_VARIABLE
from slipway_serving.runtime.limits import LIMITS_VARIABLE
from slipway_serving.runtime.queue_limits import METRICS_VARIABLE
from slipway_serving.runtime.request_parameters import MARKED_VARIABLE
from slipway_serving.system import hidden_arguments, process_state, server_folder
from slipway_serving.system.server_processes import (
    ID_VARIABLE,
    MODELS,
    ServerResources,
    clean_up,
    kill_processes,
)
from slipway_serving.triton import log_files, server_log, termination
from slipway_serving.triton.abandoned_servers import create_runtime_folder, remove_leftovers
from slipway_serving.triton.arguments import (
    reachable_host,
    supervisor_restrictions,
    token_restrictions,
)
from slipway_serving.triton.command_line import server_arguments
from slipway_serving.triton.config import ServerConfig
from slipway_serving.triton.control import SUPERVISOR_HEADER, ModelControl
from slipway_serving.triton.graph_parameters import ignored_parameters
from slipway_serving.triton.install.locate import find_triton
from slipway_serving.triton.install.setup import TritonSetup
from slipway_serving.triton.probes import ProbeEndpoint, check_health
from slipway_serving.triton.start.checks import (
    can_use_response_cache,
    check_limits,
    check_path_is_safe,
    check_programs_run,
    check_repository,
    check_shared_memory,
    free_ports,
    resolve_address,
)
from slipway_serving.triton.start.engine_cache import create_engine_cache, link_engine_cache
from slipway_serving.triton.start.errors import PortTaken, ProcessDiedLoading
from slipway_serving.triton.start.load_progress import LoadProgress
from slipway_serving.triton.start.ready import StartingServer
from slipway_serving.triton.supervision import ModelSupervisor, Supervisor, wait_for_folders
from slipway_serving.triton.watcher import Watcher

__all__ = ["Server", "ServerConfig"]

_MAX_ATTEMPTS = 3


class Server:
    """One running Triton. Use it as a context manager, or call :meth:`start` and :meth:`stop`.

    Args:
        config: Configuration of the server: what to serve and where.
        report_progress: Callback that receives a line for each step of a start: which models load and how far
            they are; None reports nothing.
        warn: Callback that receives a line for each death of a process and what followed; the log has these
            lines too.

    Attributes:
        config: Configuration as requested; after :meth:`start` it holds the ports and the address in use.
        log_path: Log file of the server.
        control_token: Token for the APIs that change the server: the configured one, or one made for this
            server.
        token_hidden: True if the running server's command line does not show the token.
    """

    def __init__(
        self,
        config: ServerConfig,
        report_progress: Callable[[str], object] | None = None,
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.config = config
        self.control_token = config.control_token or secrets.token_urlsafe(32)
        self.token_hidden = True
        self._supervisor_key = secrets.token_urlsafe(32)
        self._server_id = f"slipway-{os.getpid()}-{secrets.token_hex(4)}-"
        self.log_path = config.log_path or log_files.default_path(self._server_id)
        self._report_progress = (
            server_log.log_errors(self.log_path, report_progress) if report_progress is not None else None
        )
        self._warn = server_log.log_errors(self.log_path, warn)
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None
        self._runtime_folder_lock: IO[bytes] | None = None
        self._resources: ServerResources | None = None
        self._supervisor: Supervisor | None = None
        self._probe_endpoint: ProbeEndpoint | None = None
        self._log_start = 0
        self._use_response_cache = True
        self._setup: TritonSetup | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def http_url(self) -> str:
        """`host:port` of the HTTP endpoint, in the form that tritonclient accepts."""
        return f"{reachable_host(self.config.host)}:{self.config.http_port}"

    @property
    def grpc_url(self) -> str:
        """`host:port` of the gRPC endpoint."""
        return f"{reachable_host(self.config.host)}:{self.config.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """URL of the Prometheus metrics."""
        return f"http://{reachable_host(self.config.host)}:{self.config.metrics_port}/metrics"

    @property
    def probe_url(self) -> str | None:
        """URL of the endpoint that reports readiness and liveness; None if the server has none."""
        if self.config.probe_port is None:
            return None
        return f"http://{reachable_host(self.config.host)}:{self.config.probe_port}"

    @property
    def triton(self) -> str:
        """Version and folder of the Triton, and the backend of ONNX graphs; "" before the start."""
        return self._setup.summary if self._setup is not None else ""

    @property
    def pid(self) -> int | None:
        """Process ID of `tritonserver`; None before the start."""
        return self._process.pid if self._process else None

    @property
    def server_id(self) -> str:
        """ID that marks this server's processes and shared memory."""
        return self._server_id

    @property
    def control_token_file(self) -> Path | None:
        """File with the token made for this server, for its user only; None if a token was configured."""
        if self._resources is None or self.config.control_token is not None:
            return None
        return Path(self._resources.folder) / "control-token"

    def is_alive(self) -> bool:
        """Return True if the `tritonserver` process runs."""
        return self._process is not None and self._process.poll() is None

    def log_text(self) -> str:
        """Return the text that the log holds now."""
        return server_log.read_text(self.log_path)

    def models(self) -> list[str]:
        """Return the names of the models that are ready."""
        return sorted(self._control.ready_models())

    def start(self) -> None:
        """Start the server and return when it is ready.

        Raises:
            InvalidRequest: The repository or a port cannot be used; nothing was started.
            NotReady: Triton is not installed, a model failed to load, or the time ran out. Nothing is left
                running. The message names each failed model, the reason and the log file.
        """
        if self._process is not None:
            raise InvalidRequest("server: this server was started before; create a new Server")
        models = check_repository(self.config.repository) if isinstance(self.config.repository, Path) else []
        self._setup = TritonSetup.choose(find_triton(self.config.triton_dir), self.config.onnxruntime_backend)
        for line in ignored_parameters(models, native=self._setup.native):
            self._warn(line)
        create_engine_cache(self.config.engine_cache)
        if self.config.limits is not None:
            check_limits(self.config.limits, models if self.config.folder is not None else None)
        for server_id in remove_leftovers():
            self._warn(
                f"removed what the server {server_id} left behind: its launcher and its watcher were killed"
            )
        self._use_response_cache = can_use_response_cache(
            models, bool(self.config.response_cache_bytes), self._warn
        )
        check_shared_memory(len(models))
        check_path_is_safe(Path(tempfile.gettempdir()))
        check_programs_run(Path(tempfile.gettempdir()))
        log_files.remove_old_logs()
        wanted, self._supervisor = self.config, None
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            ports = free_ports(wanted.host, wanted.ports)
            self.config = replace(
                wanted,
                host=resolve_address(wanted.host),
                **ports,  # type: ignore[arg-type]
            )
            try:
                self._create_folder()
                if self.config.probe_port is not None:
                    self._probe_endpoint = ProbeEndpoint(
                        self.config.host, self.config.probe_port, self._check_state
                    )
                self._launch()
                self._wait_until_ready(models)
            except BaseException as error:
                # Another process may have taken a port since we picked it. We can pick again only if the
                # caller left the choice to us.
                again = isinstance(error, ProcessDiedLoading) or (
                    isinstance(error, PortTaken) and self.config.ports != wanted.ports
                )
                again = again and attempt < _MAX_ATTEMPTS
                self._release(keep_log=isinstance(error, Exception))
                if not again:
                    raise
                self._warn(f"server start failed, trying again: {error}")
            else:
                self._supervisor = Supervisor(
                    lambda: self._process,
                    lambda: self._supervise_models(models),
                    lambda: self._restart(models),
                    self._record_event,
                    self._restart_watcher,
                )
                return

    def stop(self) -> None:
        """Stop the server: end in-flight work within `exit_timeout_s`, then remove all its resources.

        Running requests finish, or videos stop at their next step boundary, as `on_stop` says. A second call,
        or a call before the start, does nothing.
        """
        if self._process is None or self._resources is None:
            return
        crashed = self.failure is not None
        try:
            try:
                if self.is_alive():
                    termination.drain_pipelines(self._resources)
            finally:
                if self._supervisor is not None:
                    self._supervisor.close()
            if self.is_alive():
                termination.shut_down(self._resources)
        finally:
            self._release(keep_log=crashed)

    @property
    def failure(self) -> SlipwayError | None:
        """Error because of which the server is down and is not restarted; None otherwise."""
        return self._supervisor.failure if self._supervisor is not None else None

    @property
    def _control(self) -> ModelControl:
        """Control client: it uses the token under explicit model control, else the supervisor's own key."""
        limit_s = max(self.config.ready_timeout_s, 1.0)
        if self.config.model_control == "explicit":
            return ModelControl(self.http_url, self.control_token, limit_s)
        return ModelControl(self.http_url, self._supervisor_key, limit_s, SUPERVISOR_HEADER)

    def _restart(self, models: Sequence[Path]) -> bool:
        """Restart `tritonserver` after its death; return True if it serves."""
        assert self._resources is not None
        assert self._supervisor is not None
        if self._watcher is not None:
            self._watcher.kill()  # a watcher that ends normally removes the server's folder
        kill_processes(self._resources.server_id)
        # With explicit control, an operator may have removed a model on purpose; it is not loaded then.
        if self.config.model_control == "none" and not wait_for_folders(models, self._supervisor.closing):
            missing = ", ".join(model.name for model in models if not model.is_dir())
            self._record_event("server_starts_without", models=missing)
        restarts = process_state.count_restart(self._resources.runtime_folder)
        started_s = time.monotonic()
        try:
            self._launch()
            self._wait_until_ready(models)
        except (SlipwayError, OSError, RuntimeError) as error:
            if not self._supervisor.closing.is_set():
                self._record_event("server_start_failed", reason=str(error))
                kill_processes(self._resources.server_id)
            return False
        after_s = round(time.monotonic() - started_s, 3)
        self._record_event("server_restarted", restarts=restarts, after_s=after_s)
        return True

    def _supervise_models(self, models: Sequence[Path]) -> ModelSupervisor:
        """Return a supervisor for the models of the `tritonserver` that runs now."""
        resources = self._resources
        assert resources is not None
        # What a URL holds is known once it is served.
        names = [model.name for model in models] or sorted(self._control.ready_models())
        return ModelSupervisor(resources, self.config.folder, names, self._control, self._record_event)

    def _restart_watcher(self) -> None:
        """Start a new watcher if this server's watcher has died."""
        if self._watcher is not None:
            self._watcher.restart_if_dead()

    def _record_event(self, event: str, **facts: Any) -> None:
        """Write a supervision event to the log and pass it to `warn` in words."""
        unwritten = server_log.append_event(self.log_path, event, **facts)
        text = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "traceback")
        note = f" (not in the log, which cannot be written: {unwritten})" if unwritten is not None else ""
        self._warn(f"{event.replace('_', ' ')}: {text}{note}")

    def _create_folder(self) -> None:
        """Create the server's private folder with its backends, their interpreter and a folder for graphs."""
        assert self._setup is not None
        folder = Path(tempfile.mkdtemp(prefix=self._server_id))
        self._resources = ServerResources(
            self._server_id,
            str(folder),
            0,
            self.config.exit_timeout_s,
            str(self.log_path),
            self.config.traces,
            sorted(self._setup.library_backends),
            self.http_url,
            checkpoint_on_stop=self.config.on_stop == "checkpoint",
        )
        self._runtime_folder_lock = create_runtime_folder(self._resources)
        (folder / "graphs").mkdir()
        # Triton passes model paths to a shell without quotes, so we give it a path that needs none.
        if self.config.folder is not None:
            (folder / MODELS).symlink_to(self.config.folder)
        link_engine_cache(self.config.engine_cache, folder)
        self._setup.lay_out(folder, os.environ)
        if (key_file := self.control_token_file) is not None:
            key_file.touch(mode=0o600)
            key_file.write_text(f"{self.control_token}\n", encoding="ascii")
        log_files.create_log(self.log_path, private_folder=self.config.log_path is None)

    def _launch(self) -> None:
        """Start `tritonserver` and its watcher."""
        assert self._resources is not None
        assert self._setup is not None
        install, folder = self._setup.install, Path(self._resources.folder)
        self._log_start = len(self.log_text())
        with server_log.open_for_append(self.log_path) as log:  # the watcher truncates a long log
            # The server runs in its own process session, so a terminal's Ctrl-C reaches only this process,
            # which then stops the server in an orderly way.
            self._process, self.token_hidden = hidden_arguments.start(
                [str(install.binary), *self._arguments(folder)],
                tuple(self._api_restrictions()),
                env={
                    **self._setup.environment(folder, os.environ),
                    ID_VARIABLE: self._server_id,
                    MARKED_VARIABLE: "1",
                    GRAPHS_FOLDER_VARIABLE: str(folder / "graphs"),
                    server_folder.FOLDER_VARIABLE: str(self._resources.runtime_folder),
                    **({LIMITS_VARIABLE: str(self.config.limits.resolve())} if self.config.limits else {}),
                    METRICS_VARIABLE: f"{reachable_host(self.config.host)}:{self.config.metrics_port}",
                },
                cwd=folder,  # stubs look for modules in their working directory first
                log=log,
            )
        self._resources = replace(self._resources, pid=self._process.pid)
        self._watcher = Watcher(self._resources, self._record_event)

    def _api_restrictions(self) -> Iterator[str]:
        """Return the arguments that restrict the administrative APIs; they contain secrets."""
        if self.config.model_control == "explicit":
            return token_restrictions(self.control_token)
        return supervisor_restrictions(self._supervisor_key, self.control_token)

    def _arguments(self, folder: Path) -> Iterator[str]:
        """Return the arguments of `tritonserver` that contain no secrets."""
        assert self._setup is not None
        install = self._setup.install
        return server_arguments(
            self.config, self._server_id, folder, install, use_response_cache=self._use_response_cache
        )

    def _check_state(self, state: str) -> None:
        """Raise NotReady if the server is not in `state` ("ready" or "live") or a process of it is gone."""
        resources = self._resources
        if resources is None or not self.is_alive():
            raise NotReady(
                "ready: tritonserver is not running; try again in a few seconds, or see the server's log"
            )
        check_health(self.http_url, state)
        process_state.check_processes(resources.pid, resources.runtime_folder)

    def _log_since_launch(self) -> str:
        """Return the log since the last launch, with model paths as the user configured them."""
        assert self._resources is not None
        link = str(Path(self._resources.folder) / MODELS)
        return self.log_text()[self._log_start :].replace(link, str(self.config.folder or link))

    def _wait_until_ready(self, models: Sequence[Path]) -> None:
        """Poll until the server is ready; raise NotReady as soon as it cannot become ready."""
        assert self._process is not None
        supervisor, report = self._supervisor, self._report_progress
        starting = StartingServer(
            self.http_url,
            self._process,
            self.config.exit_on_error,
            self.config.ready_timeout_s,
            self.log_path,
            self._log_since_launch,
            lambda: supervisor is not None and supervisor.closing.is_set(),
        )
        starting.wait(LoadProgress(models, self._server_id, report) if report is not None else None)

    def _release(self, *, keep_log: bool) -> None:
        """Kill the remaining processes, free their resources and end the watcher."""
        process, watcher = self._process, self._watcher
        resources, lock = self._resources, self._runtime_folder_lock
        self._process = self._watcher = self._resources = self._runtime_folder_lock = None
        probe_endpoint, self._probe_endpoint = self._probe_endpoint, None
        if probe_endpoint:
            probe_endpoint.close()
        if resources:
            clean_up(resources)
        if process:
            process.wait()
        if watcher:
            watcher.finish()
        if lock:
            lock.close()
        if not keep_log and self.config.log_path is None:
            shutil.rmtree(self.log_path.parent, ignore_errors=True)
