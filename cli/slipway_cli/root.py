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
from functools import partial
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from slipway_cli import checkout_commands, ready_commands, studio_commands
from slipway_cli.generate import generate
from slipway_cli.imu import commands as imu_commands
from slipway_cli.listen import commands as listen_commands
from slipway_cli.play import commands as play_commands
from slipway_cli.videos.continue_command import ContinueCommand, continue_video
from slipway_export.commands import (
    checkpoint_commands,
    engine_commands,
    export_commands,
    plan_commands,
    verify_commands,
)
from slipway_gateway import commands as gateway_commands
from slipway_gateway.trained_models import commands as management_commands
from slipway_loadtests import capacity_commands, load_commands, soak_commands
from slipway_serving.protocol import distribution
from slipway_serving.protocol.errors import SlipwayError
from slipway_serving.protocol.texts import printable
from slipway_serving.system.standard_streams import open_closed_streams, print_line
from slipway_serving.triton import commands as server_commands
from slipway_training import commands as training_commands

_INTERRUPTED = 130


EXPORTS = "Checkpoints and exports"
SERVERS = "Servers"
CLIENTS = "Clients of a running server"
MEASUREMENTS = "Training and measurements"
PANELS = {EXPORTS: "export", SERVERS: "serve", CLIENTS: "generate", MEASUREMENTS: "load"}
"""The sections of the help in their order, each with the command whose example it shows."""


@dataclass(frozen=True)
class Command:
    """One command of `slipway`.

    Attributes:
        name: Word after `slipway`.
        run: Function of the command, or the group of commands below it.
        panel: Title of the section of the help that lists it.
        example: A command line that works as it stands, shown at the end of the command's own help.
        extra: Extra that installs everything that the command imports; None if the bare install has it.
        kind: Class of the command in typer; None for the usual one.
    """

    name: str
    run: Callable[..., None] | typer.Typer
    panel: str
    example: str
    extra: str | None = None
    kind: type[TyperCommand] | None = None


_benchmarks = checkout_commands.benchmarks()
checkout_commands.add_weights(training_commands.train)

COMMANDS = (
    Command("families", checkpoint_commands.families, EXPORTS, "slipway families --json"),
    Command(
        "checkpoint",
        checkpoint_commands.checkpoint,
        EXPORTS,
        "slipway checkpoint wan_t2v --preset tiny --output checkpoint",
        "export",
    ),
    Command(
        "export",
        export_commands.export,
        EXPORTS,
        "slipway export wan_t2v --checkpoint demo --repository models",
        "export",
    ),
    Command("verify", verify_commands.verify, EXPORTS, "slipway verify models --points min,opt", "export"),
    Command("plan", plan_commands.plan, EXPORTS, "slipway plan models", "export"),
    Command(
        "engines", engine_commands.engines, EXPORTS, "slipway engines check models --target sm89", "export"
    ),
    Command("serve", server_commands.serve, SERVERS, "slipway serve --repository models", "server"),
    Command("ready", ready_commands.ready, SERVERS, "slipway ready --url localhost:8000"),
    Command("drain", server_commands.drain, SERVERS, "slipway drain --metrics localhost:8002"),
    Command(
        "gateway",
        gateway_commands.gateway,
        SERVERS,
        "slipway gateway --triton localhost:8001",
        "gateway",
    ),
    Command("studio", studio_commands.studio, SERVERS, "slipway studio --repository models", "studio"),
    Command(
        "manage",
        management_commands.manage,
        SERVERS,
        "slipway manage --repository models --models trained",
        "management",
    ),
    Command(
        "generate",
        generate,
        CLIENTS,
        'slipway generate wan_t2v "a red ball grows on sand" --output ball.mp4',
    ),
    Command(
        "continue",
        continue_video,
        CLIENTS,
        "slipway continue state.slipway --output ball.mp4",
        kind=ContinueCommand,
    ),
    Command(
        "play",
        play_commands.play,
        CLIENTS,
        "slipway play matrix_game --image first.png --actions wwaa --output world.mp4",
        "play",
    ),
    Command("listen", listen_commands.listen, CLIENTS, "slipway listen said.wav --plot heard.png", "signals"),
    Command("imu", imu_commands.imu, CLIENTS, "slipway imu recording --plot trajectory.png", "signals"),
    Command(
        "imu-recording",
        imu_commands.imu_recording,
        CLIENTS,
        "slipway imu-recording recording --seconds 30",
        "signals",
    ),
    Command(
        "train",
        training_commands.train,
        MEASUREMENTS,
        "slipway train wakeword --name hi --positive hi --negative no --backbone demo",
        "training",
    ),
    *(
        (Command("bench", _benchmarks, MEASUREMENTS, "slipway bench video", "loadtests"),)
        if _benchmarks is not None
        else ()
    ),
    Command(
        "load",
        load_commands.load,
        MEASUREMENTS,
        "slipway load --family wan_t2v --users 4 --seconds 60 --html load.html",
        "load",
    ),
    Command("saturate", load_commands.saturate, MEASUREMENTS, "slipway saturate --family wakeword", "load"),
    Command(
        "soak",
        soak_commands.soak,
        MEASUREMENTS,
        "slipway soak --repository models --minutes 30",
        "loadtests",
    ),
    Command(
        "capacity",
        capacity_commands.capacity,
        MEASUREMENTS,
        "slipway capacity --service-s 2 --each-s 60 --p95-s 4 --users 100",
        "capacity",
    ),
)
"""The commands in the order of the help; from a wheel, without those of a checkout."""


class _Panels(TyperGroup):
    """List the commands in the help by panel, and show one example of each panel."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel.

        Args:
            ctx: Context of the help that is printed.
            formatter: Writer of the help's lines.
        """
        examples = {command.name: command.example for command in COMMANDS}
        for panel, example_of in PANELS.items():
            with formatter.section(panel):
                names = [command.name for command in COMMANDS if command.panel == panel]
                formatter.write_dl([(name, _first_line(self.commands[name].help)) for name in names])
                # Unlike a paragraph, a written line is not wrapped, so that it can be copied.
                formatter.write(f"\n    $ {examples[example_of]}\n")


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


app = typer.Typer(
    name="slipway",
    cls=_Panels,
    help="Export, verify and serve PyTorch checkpoints of generative models with NVIDIA Triton.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    # `--guidance_scale` means `--guidance-scale`; contexts below inherit it.
    context_settings={
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "max_content_width": 100,
        "help_option_names": ["-h", "--help"],
    },
)
for _command in COMMANDS:
    # A line with \b before it is not wrapped.
    _epilog = f"\b\nExample:\n  {_command.example}"
    if isinstance(_command.run, typer.Typer):
        app.add_typer(_command.run, name=_command.name, epilog=_epilog)
    else:
        app.command(_command.name, cls=_command.kind, epilog=_epilog)(_command.run)
if _benchmarks is None:
    checkout_commands.add_refusal(app, "bench", "bench: the benchmarks", "loadtests")


@dataclass
class Invocation:
    """Options of the root command and state of one invocation, for error reports."""

    debug: bool = False
    command: str = ""
    interrupted: bool = False


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
    """Record the root options for error reports."""
    if isinstance(context.obj, Invocation):
        context.obj.debug = debug
        context.obj.command = context.invoked_subcommand or ""


def main() -> None:
    """Run the command line of this process and exit."""
    open_closed_streams()
    invocation = Invocation()
    # A shell starts a background process with SIGINT ignored, and the process must keep ignoring it.
    interruptible = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if interruptible:
        signal.signal(signal.SIGINT, partial(_interrupt, invocation))
    code = _run(sys.argv[1:], invocation)
    if interruptible:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(code))
    sys.exit(code)


def _interrupt(invocation: Invocation, number: int, frame: FrameType | None) -> None:
    """End the command; a second signal ends it at once.

    gRPC never ends where the closing of a connection is interrupted.
    """
    invocation.interrupted = True
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(_INTERRUPTED))
    raise KeyboardInterrupt


def run(arguments: Sequence[str]) -> int:
    """Run one command line.

    Args:
        arguments: Command line without the name of the program.

    Returns:
        The exit code: 0, or 2 for bad usage and invalid requests, 130 when cancelled, else 1.
    """
    return _run(arguments, Invocation())


def _run(arguments: Sequence[str], invocation: Invocation) -> int:
    """Run one command line, report its error in one line, and return the exit code."""
    try:
        typer.main.get_command(app).main(args=list(arguments), prog_name="slipway", obj=invocation)
    except KeyboardInterrupt:
        return _print_interrupted()
    except SystemExit as exit_request:
        code = exit_request.code if isinstance(exit_request.code, int) else int(exit_request.code is not None)
        # typer turns a KeyboardInterrupt into this exit code without a message.
        return _print_interrupted() if code == _INTERRUPTED else code
    except Exception as error:  # noqa: BLE001  (the last line of defence: no traceback reaches a user)
        if invocation.debug:
            traceback.print_exc()
        if invocation.interrupted and not isinstance(error, SlipwayError):
            # An interrupted import may raise another error, as extension modules do.
            return _print_interrupted()
        # The message may contain a server's text, which must not control the terminal.
        message = printable(" ".join(describe(error, invocation).split()))
        print_line(f"error: {message}", err=True)
        return error.exit_code if isinstance(error, SlipwayError) else 1
    return 0


def _print_interrupted() -> int:
    print_line("interrupted", err=True)
    return _INTERRUPTED


def describe(error: Exception, invocation: Invocation) -> str:
    """Describe an error that ended a command in one sentence."""
    if isinstance(error, SlipwayError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        extra = next((command.extra for command in COMMANDS if command.name == invocation.command), None)
        if missing := distribution.missing(invocation.command, error, extra):
            return missing
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return (
        f"{type(error).__name__}: {error}; this is a bug or a broken installation; "
        f"`slipway --debug {invocation.command} ...` shows the traceback"
    )


if __name__ == "__main__":
    main()
