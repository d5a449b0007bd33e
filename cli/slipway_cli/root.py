"""The `slipway` command: the root of all commands, and the one place where errors become exit codes.

Commands live in the packages that do the work, each in a `commands.py` that imports nothing heavy. An error
of ours is one line on stderr and the exit code of its class; anything else is one line too, with its
traceback behind `--debug`.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Annotated

import typer
from typer.core import TyperCommand

from slipway_cli.generate import generate
from slipway_client import listen_commands, ready_commands
from slipway_client.imu import commands as imu_commands
from slipway_client.play import commands as play_commands
from slipway_export import commands as export_commands
from slipway_export import plan_commands, verify_commands
from slipway_loadtests import commands as loadtest_commands
from slipway_loadtests import load_commands, soak_commands
from slipway_management import commands as management_commands
from slipway_serving import commands as server_commands
from slipway_serving import distribution
from slipway_serving.errors import SlipwayError
from slipway_training import commands as training_commands

_INTERRUPTED = 130


@dataclass(frozen=True)
class Command:
    """One command of `slipway`.

    Attributes:
        name: after `slipway`.
        run: what it does, or the commands below it.
        extra: the one extra that installs all it imports; None where the bare install has it.
        parsed_by: reads its arguments.
    """

    name: str
    run: Callable[..., None] | typer.Typer
    extra: str | None = None
    parsed_by: type[TyperCommand] = TyperCommand


COMMANDS = (
    Command("families", export_commands.families),
    Command("checkpoint", export_commands.checkpoint, "export"),
    Command("export", export_commands.export, "export", export_commands.WithCompile),
    Command("verify", verify_commands.verify, "export"),
    Command("plan", plan_commands.plan, "export"),
    Command("serve", server_commands.serve, "server"),
    Command("ready", ready_commands.ready),
    Command("drain", server_commands.drain),
    Command("generate", generate),
    Command("play", play_commands.play, "play"),
    Command("imu", imu_commands.imu, "signals"),
    Command("imu-recording", imu_commands.imu_recording, "signals"),
    Command("listen", listen_commands.listen, "signals"),
    Command("train", training_commands.train, "training"),
    Command("manage", management_commands.manage, "management"),
    Command("bench", loadtest_commands.bench, "loadtests"),
    Command("load", load_commands.load, "load"),
    Command("saturate", load_commands.saturate, "load"),
    Command("soak", soak_commands.soak, "loadtests"),
    Command("capacity", loadtest_commands.capacity, "capacity"),
)
"""The commands in the order of the help."""

app = typer.Typer(
    name="slipway",
    help="PyTorch checkpoints of generative models, exported, verified and served by NVIDIA Triton.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    # `--guidance_scale` means `--guidance-scale`; contexts below inherit it.
    context_settings={
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "max_content_width": 100,
    },
)
for _command in COMMANDS:
    if isinstance(_command.run, typer.Typer):
        app.add_typer(_command.run, name=_command.name)
    else:
        app.command(_command.name, cls=_command.parsed_by)(_command.run)


@dataclass
class Invocation:
    """What the root command learnt of its arguments, for the reporting of errors."""

    debug: bool = False
    command: str = ""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"slipway {version(distribution.NAME)}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Remember what the reporting of errors needs."""
    if isinstance(context.obj, Invocation):
        context.obj.debug = debug
        context.obj.command = context.invoked_subcommand or ""


def main() -> None:
    """Run the command line of this process and exit."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    sys.exit(run(sys.argv[1:]))


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the command; a second signal ends it at once.

    gRPC never ends where the closing of a connection is interrupted.
    """
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(_INTERRUPTED))
    raise KeyboardInterrupt


def run(arguments: Sequence[str]) -> int:
    """Run one command line.

    Args:
        arguments: without the program's name.

    Returns:
        The exit code: 0, or 2 for bad usage and invalid requests, 130 when cancelled, else 1.
    """
    invocation = Invocation()
    try:
        typer.main.get_command(app).main(args=list(arguments), prog_name="slipway", obj=invocation)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception as error:  # noqa: BLE001  (the last line of defence: no traceback reaches a user)
        if invocation.debug:
            traceback.print_exc()
        print(f"error: {' '.join(describe(error, invocation).split())}", file=sys.stderr)
        return error.exit_code if isinstance(error, SlipwayError) else 1
    return 0


def describe(error: Exception, invocation: Invocation) -> str:
    """Return one sentence for people about an error that ended a command."""
    if isinstance(error, SlipwayError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        extra = next((command.extra for command in COMMANDS if command.name == invocation.command), None)
        if missing := distribution.missing(invocation.command, error, extra):
            return missing
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return (
        f"{type(error).__name__}: {error}; this is a defect or a broken installation, "
        f"`slipway --debug {invocation.command} ...` shows where"
    )


if __name__ == "__main__":
    main()
