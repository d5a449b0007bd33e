"""`slipway generate FAMILY`: a command for each request that a family's clients make, built from its fields.

The request and the place of the result are checked before anything is sent; progress goes to stderr, one line
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
from slipway_cli.server_options import Overwrite, Quiet, SpokenProtocol, TlsFolder, Url
from slipway_client.address import Address, address_of
from slipway_client.generation import Protocol
from slipway_client.progress import notes
from slipway_serving.protocol.command_output import Json, print_json
from slipway_serving.protocol.errors import Cancelled
from slipway_serving.protocol.requests import Request


class _Families(TyperGroup):
    """The commands of all families, made when one of them is asked for: a family may come from outside."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of what can be generated."""
        return list(self._made().commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name; None for an unknown one."""
        return self._made().commands.get(cmd_name)

    @staticmethod
    def _made() -> Any:
        from slipway_export.families import families

        app = typer.Typer(rich_markup_mode=None)
        app.callback()(lambda: None)
        for family in families():
            for request in family.requests:
                app.command(request.model, help=_help(request))(_command(request))
        return typer.main.get_command(app)


generate = typer.Typer(
    cls=_Families,
    help="Generate with a running server; one command per model family.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@generate.callback()
def _generate() -> None:
    """Keep `generate` a group, whose commands are those of the families."""


def _help(request: type[Request]) -> str:
    first_line = (inspect.getdoc(request) or request.model).partition("\n")[0]
    return f"{first_line.rstrip('.')}, by a running server."


def _command(request: type[Request]) -> Callable[..., None]:
    """Return the function of a request's command, with a parameter for each option."""

    def run(
        output_file: Path,
        url: str | None,
        protocol: Protocol | None,
        tls: Path | None,
        overwrite: bool,
        json: bool,
        quiet: bool,
        **given: Any,
    ) -> None:
        form = saving.form_of(output_file, request.events, overwrite=overwrite)
        say = notes(quiet)
        asked = request(**options.values(request, given, say), **({"output": form} if form else {}))
        turns = list(options.turns(request, given, say)) if request.turn is not None else None
        started_s = time.monotonic()
        try:
            answers = _answers(asked, turns, address_of(url, protocol), tls, quiet)
        except KeyboardInterrupt:
            raise Cancelled(f"{request.model}: cancelled, here and on the server") from None
        elapsed_s = time.monotonic() - started_s
        content = saving.write(asked, answers, output_file)
        rate = saving.cache_hit_rate(answers)
        if json:
            document = {"model": request.model, "output": str(output_file), "elapsed_s": elapsed_s}
            print_json({**document, "content": content, "cache_hit_rate": rate})
        elif not quiet:
            hits = "" if rate is None else f", cache hit rate {rate:.0%}"
            said = saving.described(content)
            typer.echo(f"{output_file}: {said}, generated in {elapsed_s:.1f} s{hits}")

    told = [*options.parameters(request), *_common(request)]
    # Those without a default come first, as Python has it.
    told.sort(key=lambda parameter: parameter.default is not parameter.empty)
    vars(run)["__signature__"] = inspect.Signature(told)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in told}
    return run


def _common(request: type[Request]) -> list[inspect.Parameter]:
    suffixes = saving.suffixes(request.events)
    file = typer.Option("--output", "-o", help=f"File to write: {' or '.join(suffixes)}.", metavar="FILE")
    return [
        options.option("output_file", Annotated[Path, file], Path(f"out{suffixes[0]}")),
        options.option("url", Url, None),
        options.option("protocol", SpokenProtocol, None),
        options.option("tls", TlsFolder, None),
        options.option("overwrite", Overwrite, False),
        options.option("json", Json, False),
        options.option("quiet", Quiet, False),
    ]


def _answers(
    request: Request,
    turns: Sequence[Request] | None,
    address: Address,
    tls: Path | None,
    quiet: bool,
) -> list[Any]:
    """Return what a server answers to a request, or to the turns of the session that it opens."""
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
