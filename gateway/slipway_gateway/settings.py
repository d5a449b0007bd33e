"""Settings of a gateway, checked once where the command line or a test makes them.

Each role takes what it needs: the API answers callers, a worker runs jobs, and "all" does both in one
process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from slipway_serving.protocol import durations
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.protocol.proxies import is_loopback

DATABASE_VARIABLE, CONTENTS_VARIABLE = "SLIPWAY_GATEWAY_DATABASE", "SLIPWAY_GATEWAY_CONTENTS"
"""Environment variables of the two settings that may contain passwords."""
DEFAULT_DATA, DATABASE_FILE = Path("gateway-data"), "jobs.db"
"""Default folder of the data, and the name of the SQLite file in it."""


class Role(StrEnum):
    """Work that a process of the gateway does."""

    ALL = "all"
    API = "api"
    WORKER = "worker"


@dataclass(frozen=True)
class GatewaySettings:
    """Settings of one process of the gateway.

    Attributes:
        triton: Addresses of the servers' gRPC ports, or the name of a headless service.
        role: Work that the process does.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        data: Folder of the default database and of the default contents.
        database: URL of the database; None takes a SQLite file in `data`.
        contents: Folder or URL of the contents; None takes a folder in `data`.
        concurrency: Largest number of videos that a server makes at a time for all gateways.
        triton_metrics_port: Port of the servers' metrics; 0 does not read them.
        tls: Folder of the certificates for the servers; None connects without TLS.
        checkpoint_every_steps: Number of steps after which the state of a running video is stored.
        max_waiting: Largest number of jobs that wait.
        max_attempts: Number of times that a job without a state may begin from its first step.
        keep_s: Time for which a finished job is kept, in seconds.
        quota_bytes: Largest size of all contents; None sets no limit.
        max_body_bytes: Largest body of a request, in bytes.
        allow_origins: Origins of pages that may call the API from a browser.
        server_names: Names by which callers may address the gateway; empty allows every name.
        allow_private_addresses: True if picture URLs and webhooks may lead to private addresses.
        exit_timeout_s: Time that running requests have at the shutdown, in seconds.
        lease_s: Time after which a job of a worker that does not answer is taken over, in seconds.
        sync_timeout_s: Longest wait of `POST /v1/videos/sync`, in seconds.
        require_keys: True if callers need a key. It is False only on a loopback address.
        repository: Model repository of the admin routes; None leaves them out.
        models: Folder of the trained models of the admin routes.
        trained_family: Family of the trained models.
        backbone: Checkpoint of the backbone on which callers may train words; None lets nobody train.
        control: HTTP address of the server that loads exported models, "HOST:PORT"; None loads none.
        control_token_file: File with the token that this server requires to load models.
        studio: True if the API also serves the studio, a web page, at `/`.

    Raises:
        InvalidRequest: A setting breaks its rule; the message names every such setting.
    """

    triton: tuple[str, ...]
    role: Role = Role.ALL
    host: str = "127.0.0.1"
    port: int = 8080
    data: Path = DEFAULT_DATA
    database: str | None = field(default=None, repr=False)
    contents: str | None = field(default=None, repr=False)
    concurrency: int = 4
    triton_metrics_port: int = 8002
    tls: Path | None = None
    checkpoint_every_steps: int = 5
    max_waiting: int = 1000
    max_attempts: int = 2
    keep_s: float = 86_400.0
    quota_bytes: int | None = None
    max_body_bytes: int = 64 << 20
    allow_origins: tuple[str, ...] = ()
    server_names: tuple[str, ...] = ()
    allow_private_addresses: bool = False
    exit_timeout_s: float = 30.0
    lease_s: float = 15.0
    sync_timeout_s: float = 600.0
    require_keys: bool | None = None
    repository: Path | None = None
    models: Path | None = None
    trained_family: str = "wakeword"
    backbone: str | None = None
    control: str | None = None
    control_token_file: Path | None = None
    studio: bool = True

    def __post_init__(self) -> None:
        if self.require_keys is None:
            object.__setattr__(self, "require_keys", not is_loopback(self.host))
        problems = [
            f"{name} must be {low} or more, got {value}; try {suggestion}"
            for name, value, low, suggestion in (
                ("port", self.port, 0, 8080),
                ("concurrency", self.concurrency, 1, 4),
                ("triton_metrics_port", self.triton_metrics_port, 0, 8002),
                ("checkpoint_every_steps", self.checkpoint_every_steps, 1, 5),
                ("max_waiting", self.max_waiting, 1, 1000),
                ("max_attempts", self.max_attempts, 1, 2),
                ("max_body_bytes", self.max_body_bytes, 1024, 64 << 20),
                ("quota_bytes", 0 if self.quota_bytes is None else self.quota_bytes, 0, 1 << 30),
            )
            if value < low
        ]
        problems += [
            problem
            for name in ("keep_s", "exit_timeout_s", "lease_s", "sync_timeout_s")
            if (problem := durations.problem(name, getattr(self, name)))
        ]
        if not self.triton:
            problems.append("triton must name at least one server, got none; try --triton localhost:8001")
        if not self.require_keys and not is_loopback(self.host):
            problems.append(
                f"require_keys must be true when other machines can reach the gateway, got false for host"
                f" {self.host}; try 127.0.0.1"
            )
        if self.models is not None and self.repository is None:
            problems.append("repository must be given with models, got none; try --repository models")
        if self.backbone is not None and self.models is None:
            problems.append("models must be given with backbone, got none; try --models trained")
        raise_all("gateway", problems)

    @property
    def database_url(self) -> str:
        """URL of the database."""
        return self.database or f"sqlite:///{self.data / DATABASE_FILE}"

    @property
    def contents_url(self) -> str:
        """Folder or URL of the contents."""
        return self.contents or str(self.data / "contents")

    def prepare(self) -> None:
        """Create the folder of the default database and contents; only its owner may read it.

        Raises:
            InvalidRequest: The folder cannot be made.
        """
        if self.database is not None and self.contents is not None:
            return
        try:
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(
                f"gateway: data must be a writable folder, got {self.data} ({error.strerror}); try --data"
                " FOLDER"
            ) from None
