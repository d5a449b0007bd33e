"""The commands `slipway generate MODEL`, one for each request of a family, built from the request's fields.

The request and the output file are checked before anything is sent. Progress goes to stderr, and one line
about the result to stdout.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from slipway_cli import options, saving
from slipway_cli.server_options import Overwrite, Quiet, SpokenProtocol, TlsFolder, Urls, server_of
from slipway_cli.videos import stop_options
from slipway_cli.videos.making import Session
from slipway_client.address import Address
from slipway_client.generation import Protocol
from slipway_client.progress import notes
from slipway_serving.protocol.command_output import Json, print_json
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.errors import Cancelled
from slipway_serving.protocol.requests import Request


class FamilyCommands(TyperGroup):
    """Commands of all families, built on first use, since other distributions may add families."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, which are those of the models."""
        return list(self._build_group().commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with a name, or None for an unknown one."""
        return self._build_group().commands.get(cmd_name)

    @staticmethod
    def _build_group() -> Any:
        from slipway_export.families import families

        app = typer.Typer(rich_markup_mode=None)
        app.callback()(lambda: None)
        for family in families():
            for request in family.requests:
                app.command(request.model, help=_help(request))(_command(request))
        return typer.main.get_command(app)


generate = typer.Typer(
    cls=FamilyCommands,
    help="Send a request to a running server and write the result to a file; one command per model.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@generate.callback()
def _generate() -> None:
    """Make `generate` a group of commands."""


def _help(request: type[Request]) -> str:
    first_line = (inspect.getdoc(request) or request.model).partition("\n")[0]
    return f"{first_line.rstrip('.')}."


def _command(request: type[Request]) -> Callable[..., None]:
    """Return the function of a request's command, with a parameter for each option."""

    def run(
        context: typer.Context,
        output_file: Path,
        url: str | None,
        protocol: Protocol | None,
        tls: Path | None,
        overwrite: bool,
        json: bool,
        quiet: bool,
        **arguments: Any,
    ) -> None:
        if issubclass(request, DenoisingRequest):
            session = Session(server_of(url, protocol), tls, json, quiet)
            sources = {name: context.get_parameter_source(name) for name in arguments}
            left_out = {
                name for name, source in sources.items() if source is None or source.name == "DEFAULT"
            }
            stop_options.generate(request, arguments, left_out, output_file, session, overwrite=overwrite)
            return
        form = saving.check_output(output_file, request.events, overwrite=overwrite)
        say = notes(quiet)
        filled_request = request(
            **options.values(request, arguments, say), **({"output": form} if form else {})
        )
        turns = list(options.turns(request, arguments, say)) if request.turn is not None else None
        started_s = time.monotonic()
        try:
            answers = _fetch_answers(filled_request, turns, server_of(url, protocol), tls, quiet)
        except KeyboardInterrupt:
            raise Cancelled(f"{request.model}: cancelled, here and on the server") from None
        elapsed_s = time.monotonic() - started_s
        content = saving.write(filled_request, answers, output_file)
        rate = saving.cache_hit_rate(answers)
        if json:
            document = {"model": request.model, "output": str(output_file), "elapsed_s": elapsed_s}
            print_json({**document, "content": content, "cache_hit_rate": rate})
        elif not quiet:
            hits = "" if rate is None else f", cache hit rate {rate:.0%}"
            description = saving.describe(content)
            typer.echo(f"{output_file}: {description}, generated in {elapsed_s:.1f} s{hits}")

    parameters = [*options.parameters(request), *_common_options(request)]
    # Python requires that parameters without a default come first.
    parameters.sort(key=lambda parameter: parameter.default is not parameter.empty)
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _common_options(request: type[Request]) -> list[inspect.Parameter]:
    """Return the parameters that every command of `generate` has."""
    suffixes = saving.suffixes(request.events)
    file = typer.Option("--output", "-o", help=f"Output file, {' or '.join(suffixes)}.", metavar="FILE")
    return [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        options.option("output_file", Annotated[Path, file], Path(f"out{suffixes[0]}")),
        *(stop_options.parameters() if issubclass(request, DenoisingRequest) else ()),
        options.option("url", Urls, None),
        options.option("protocol", SpokenProtocol, None),
        options.option("tls", TlsFolder, None),
        options.option("overwrite", Overwrite, False),
        options.option("json", Json, False),
        options.option("quiet", Quiet, False),
    ]


def _fetch_answers(
    request: Request,
    turns: Sequence[Request] | None,
    address: Address,
    tls: Path | None,
    quiet: bool,
) -> list[Any]:
    """Send a request, or the turns of the session that it opens, and return the server's answers."""
    from slipway_client import Client, Progress
    from slipway_client.progress import progress

    answers: list[Any] = []
    with (
        Client(*address, tls=tls) as client,
        progress("step" if turns is None else "turn", quiet) as report,
    ):
        if turns is None:
            with closing(client.generate(request)) as events:
                for event in events:
                    if isinstance(event, Progress):
                        report(event.step, event.steps)
                    else:
                        answers.append(event)
            return answers
        with client.session(request) as session:
            for index, turn in enumerate(turns, 1):
                events = session.step(turn, last=index == len(turns))
                answers += [event for event in events if not isinstance(event, Progress)]
                report(index, len(turns))
    return answers
