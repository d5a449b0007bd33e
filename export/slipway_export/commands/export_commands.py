"""The `export` command: one sub-command for each family, built from what the family declares."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from slipway_export.commands.export_arguments import ExportArguments, export_options, parameters, parse
from slipway_export.commands.optional_value import insert_defaults, with_optional
from slipway_export.commands.server_options import publisher
from slipway_export.commands.sources import trained_family
from slipway_export.commands.terminal import quiet_libraries, reporting
from slipway_serving.protocol.command_output import print_json
from slipway_serving.protocol.errors import Cancelled
from slipway_serving.runtime.torch_engine.options import COMPILE_MODES

if TYPE_CHECKING:
    from slipway_export.options import ExportOptions
    from slipway_export.spec import Family

_OPTIONAL_VALUES = {"--compile": COMPILE_MODES}
"""Options whose value may be left out, with their values."""


# Typer exports the errors of its parser, but not the class that all of them have in common.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class _FamilyCommands(TyperGroup):
    """Commands of all families, built when one of them is used, because a family may come from outside."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the families."""
        from slipway_export.families import families

        return [family.name for family in families()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a family.

        Raises:
            InvalidRequest: No family has that name, or the family did not load.
        """
        from slipway_export.families import family_named

        return _family_command(family_named(cmd_name))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; options may also come before the name of the family."""
        from slipway_export.families import families

        names = {family.name for family in families()}
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = _family_first(ctx, args, names)
        return super().parse_args(ctx, args)


export = typer.Typer(
    cls=_FamilyCommands,
    help="Export a checkpoint into a model repository and verify it against PyTorch; one command per family.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@export.callback()
def _export() -> None:
    """Keep `export` a group, whose commands are those of the families."""


def _family_command(family: Family) -> Any:
    """Return the command that exports checkpoints of a family."""

    def run(**values: Any) -> None:
        run_command(family, parse(family, values))

    _set_signature(run, parameters(family))
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(
        family.name,
        cls=with_optional(_OPTIONAL_VALUES),
        help=f"Export a checkpoint of {family.upstream} into a model repository"
        " and verify it against PyTorch.",
        short_help=family.summary,
        epilog=f"\b\nExample:\n  slipway export {family.name} --checkpoint tiny --repository models",
    )(run)
    return typer.main.get_command(app)


def _set_signature(run: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _family_first(ctx: Any, args: Sequence[str], names: set[str]) -> list[str]:
    """Return the arguments with the family's name in front of the options that came before it."""
    arguments = insert_defaults(args, _OPTIONAL_VALUES)
    orders = [
        [argument, *arguments[:index], *arguments[index + 1 :]]
        for index, argument in enumerate(arguments)
        if argument in names
    ]
    # An option's value may have the name of a family; then the options of that family do not parse.
    return next((each for each in orders if _parses(ctx, *each)), orders[0] if orders else list(args))


def _parses(ctx: Any, family: str, *options: str) -> bool:
    try:
        parser = ctx.command.get_command(ctx, family).make_parser(ctx)
        return not parser.parse_args(list(options))[1]
    except _UsageError:
        return False


def run_command(family: Family, arguments: ExportArguments) -> None:
    """Export a checkpoint as the arguments say, and report the result.

    Args:
        family: Family of the checkpoint.
        arguments: Arguments of the command.

    Raises:
        InvalidRequest: An argument breaks its rule.
        SlipwayError: The export failed; nothing was placed.
    """
    from rich.console import Console

    from slipway_export.commands.plan_commands import print_plan
    from slipway_export.commands.report import export_document, print_export
    from slipway_export.run import run_export
    from slipway_export.trained_models import Library, export_model

    options, target, source = export_options(family, arguments), arguments.target, arguments.source
    if arguments.run.plan:
        print_plan(family, options, json=arguments.run.json)
        return
    publish = publisher(target.triton, target.control_token_file, target.repository)
    # The console keeps this stream, because libraries' notices to a later stderr are suppressed.
    progress = Console(file=sys.stderr, quiet=arguments.run.quiet)
    try:
        with quiet_libraries(), reporting(progress) as report:
            if source.model is None:
                result = run_export(family, options, report, publish)
            else:
                trained, library = trained_family(family), Library(source.models)
                result = export_model(trained, library, source.model, options, report, publish)
    except KeyboardInterrupt:
        raise Cancelled(f"export: interrupted; {after_interrupt(options)}") from None
    if arguments.run.json:
        print_json(export_document(result, target.repository, options.output))
    elif not arguments.run.quiet:
        print_export(result, target.repository, options.output)


def after_interrupt(options: ExportOptions) -> str:
    """Return what an interrupted export has left, and what the same command would do."""
    if options.output is not None:
        return f"{options.output} is unchanged; the same command starts from the beginning"
    if options.fresh:
        return "without --fresh the same command continues after the last finished graph"
    return "the same command continues after the last finished graph"
