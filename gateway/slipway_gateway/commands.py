"""The commands `slipway gateway`, `slipway gateway migrate` and `slipway gateway keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipway_gateway.access.commands import keys
from slipway_gateway.settings import CONTENTS_VARIABLE, DATABASE_VARIABLE, DEFAULT_DATA, GatewaySettings, Role
from slipway_serving.protocol.durations import checked_option

_GIB, _MIB = 1 << 30, 1 << 20

gateway = typer.Typer(
    help="Serve the HTTP and WebSocket API in front of one or more running servers.",
    invoke_without_command=True,
    no_args_is_help=False,
    rich_markup_mode=None,
)
gateway.add_typer(keys, name="keys")

Data = Annotated[Path, typer.Option(help="Folder of the default database and of the default contents.")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        envvar=DATABASE_VARIABLE,
        show_envvar=True,
        help="URL of the database, sqlite:///FILE or postgresql://USER@HOST/NAME; by default, a file in"
        " --data.",
    ),
]


@gateway.callback()
def serve_gateway(
    context: typer.Context,
    triton: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="gRPC address of a server; repeat it for several. A host name with several addresses is"
            " several servers. [default: localhost:8001]",
            show_default=False,
        ),
    ] = None,
    role: Annotated[Role, typer.Option(help="Work that this process does.")] = Role.ALL,
    host: Annotated[
        str, typer.Option(help="Address to listen on; callers need a key unless it is a loopback address.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")
    ] = 8080,
    data: Data = DEFAULT_DATA,
    database: DatabaseUrl = None,
    contents: Annotated[
        str | None,
        typer.Option(
            envvar=CONTENTS_VARIABLE,
            show_envvar=True,
            help="Folder or URL of the contents: s3://BUCKET/PATH, gs://… or az://…; by default, a folder in"
            " --data.",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Largest number of videos of one model at a time on a server.")
    ] = 4,
    triton_metrics_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the servers' metrics; 0 does not read them.")
    ] = 8002,
    tls: Annotated[
        Path | None, typer.Option(help="Folder of the certificates for addresses with grpcs://.")
    ] = None,
    checkpoint_every_steps: Annotated[
        int, typer.Option(min=1, help="Number of steps after which a running video's state is stored.")
    ] = 5,
    max_waiting: Annotated[int, typer.Option(min=1, help="Largest number of jobs that wait.")] = 1000,
    max_attempts: Annotated[
        int, typer.Option(min=1, help="Number of times that a job without a state may begin.")
    ] = 2,
    keep_s: Annotated[
        float,
        typer.Option(callback=checked_option, help="Time for which a finished job is kept, in seconds."),
    ] = 86_400.0,
    quota_gb: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Largest size of all contents, in GiB; the oldest finished jobs go first."
        ),
    ] = None,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Largest body of a request, in MiB.")] = 64,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of pages that may call the API; repeat it for several.")
    ] = None,
    server_name: Annotated[
        list[str] | None,
        typer.Option(help="Name by which callers may address the gateway; repeat it. By default, any."),
    ] = None,
    allow_private_addresses: Annotated[
        bool,
        typer.Option(
            "--allow-private-addresses", help="Let picture URLs and webhooks lead to private addresses."
        ),
    ] = False,
    exit_timeout_s: Annotated[
        float,
        typer.Option(callback=checked_option, help="Time that open requests have at the end, in seconds."),
    ] = 30.0,
    lease_s: Annotated[
        float,
        typer.Option(
            callback=checked_option,
            help="Time after which a job of a worker that died is taken over, in seconds.",
        ),
    ] = 15.0,
    repository: Annotated[
        Path | None, typer.Option(help="Model repository that receives exports of trained models.")
    ] = None,
    models: Annotated[
        Path | None, typer.Option(help="Folder of trained models, which adds the admin routes.")
    ] = None,
    trained_family: Annotated[
        str, typer.Option(help="Family of the trained models.", metavar="FAMILY")
    ] = "wakeword",
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Backbone on which callers may train words; needs --models and the extra training.",
            metavar="PRESET|DIR",
        ),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(
            help="Running server of the repository, which then loads the exports.", metavar="HOST:HTTP_PORT"
        ),
    ] = None,
    control_token_file: Annotated[
        Path | None, typer.Option(help="File with the token that this server requires to load models.")
    ] = None,
    studio: Annotated[
        bool, typer.Option("--studio/--no-studio", help="Serve the studio, a web page, at /.")
    ] = True,
) -> None:
    """Serve the HTTP and WebSocket API in front of one or more running servers."""
    if context.invoked_subcommand is not None:
        return
    settings = GatewaySettings(
        triton=tuple(triton or ("localhost:8001",)),
        role=role,
        host=host,
        port=port,
        data=data,
        database=database,
        contents=contents,
        concurrency=concurrency,
        triton_metrics_port=triton_metrics_port,
        tls=tls,
        checkpoint_every_steps=checkpoint_every_steps,
        max_waiting=max_waiting,
        max_attempts=max_attempts,
        keep_s=keep_s,
        quota_bytes=None if quota_gb is None else int(quota_gb * _GIB),
        max_body_bytes=max_body_mb * _MIB,
        allow_origins=tuple(allow_origin or ()),
        server_names=tuple(server_name or ()),
        allow_private_addresses=allow_private_addresses,
        exit_timeout_s=exit_timeout_s,
        lease_s=lease_s,
        repository=repository,
        models=models,
        trained_family=trained_family,
        backbone=backbone,
        control=control,
        control_token_file=control_token_file,
        studio=studio,
    )
    from slipway_gateway.process import serve

    serve(settings, lambda address: typer.echo(f"ready on {address}", err=True))


@gateway.command()
def migrate(data: Data = DEFAULT_DATA, database: DatabaseUrl = None) -> None:
    """Bring the database to the schema of this version; run it before the processes of an upgrade."""
    from slipway_gateway.database.revisions import upgrade

    settings = GatewaySettings(triton=("unused:1",), data=data, database=database)
    settings.prepare()
    upgrade(settings.database_url)
    typer.echo("the tables of the database have the revision of this version")
