"""The command `slipway continue`: finish a stopped video from its state, on any server with its checkpoint.

The state names the model and holds the fields of the stopped request. The options are the fields that some
family lets change. A change that the state's own family does not allow is refused by the field's name.
"""

from __future__ import annotations

import inspect
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from slipway_cli import options, saving
from slipway_cli.server_options import Overwrite, Quiet, SpokenProtocol, TlsFolder, Urls, server_of
from slipway_cli.videos.files import STATE_FILE, DraftFile, StateFile, VideoFiles, numbered
from slipway_cli.videos.making import Session, make_video
from slipway_client.generation import Protocol
from slipway_serving.protocol.command_output import Json
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.protocol.events import FramesPart, VideoPart
from slipway_serving.protocol.fields import Array, Field, Image, fields_of

_NAME = "continue"
_Stopped = Annotated[
    Path, typer.Argument(help="State of the stopped video, as --state has written it.", metavar="STATE")
]
_Pick = Annotated[
    int | None,
    typer.Option(
        help="Number of a draft of `slipway generate --drafts`: 3 with STATE state.slipway continues"
        " state-3.slipway.",
        min=1,
    ),
]
_OUTPUTS = saving.suffixes((VideoPart, FramesPart))
_Output = Annotated[
    Path,
    typer.Option("--output", "-o", help=f"Output file, {' or '.join(_OUTPUTS)}.", metavar="FILE"),
]


class ContinueCommand(TyperCommand):
    """Command whose options are built on first use, since other distributions may add families."""

    @cached_property
    def _built(self) -> Any:
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.command(_NAME)(_command())
        return typer.main.get_command(app)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the command and those of every command."""
        return [*self._built.params, *super().get_params(ctx)]

    def invoke(self, ctx: Any) -> Any:
        """Run the command with the values of its options."""
        return ctx.invoke(self._built.callback, **ctx.params)


def continue_video() -> None:
    """Finish a stopped video from its state, perhaps with another prompt or on another server."""


def _command() -> Any:
    """Return the function of the command, with a parameter for each option."""
    changes = _changes()

    def run(
        stopped: Path,
        pick: int | None,
        output_file: Path,
        state_file: Path | None,
        draft_file: Path | None,
        url: str | None,
        protocol: Protocol | None,
        tls: Path | None,
        overwrite: bool,
        json: bool,
        quiet: bool,
        **arguments: Any,
    ) -> None:
        source = stopped if pick is None else numbered(stopped, pick)
        files = VideoFiles(output_file, state_file, draft_file)
        request = read_request(source, arguments, files, overwrite=overwrite)
        make_video(request, files, Session(server_of(url, protocol), tls, json, quiet))

    parameters = [
        options.option("stopped", _Stopped, Path(STATE_FILE)),
        options.option("pick", _Pick, None),
        options.option("output_file", _Output, Path(f"out{_OUTPUTS[0]}")),
        *(_change_option(field) for field in changes.values()),
        options.option("state_file", StateFile, None),
        options.option("draft_file", DraftFile, None),
        options.option("url", Urls, None),
        options.option("protocol", SpokenProtocol, None),
        options.option("tls", TlsFolder, None),
        options.option("overwrite", Overwrite, False),
        options.option("json", Json, False),
        options.option("quiet", Quiet, False),
    ]
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def read_request(
    source: Path, arguments: dict[str, Any], files: VideoFiles, *, overwrite: bool
) -> DenoisingRequest:
    """Return the request that continues the video of a state file.

    Args:
        source: File of the state.
        arguments: Values of the fields to change, by name; None leaves a field as it is in the state.
        files: Output files; they are checked.
        overwrite: True if existing files may be replaced.

    Raises:
        InvalidRequest: The file is no whole state, no family has its model, a field must not change or breaks
            its rule, or a path cannot be written.
    """
    from slipway_client.states import continued_request, read_state_file, split_state
    from slipway_serving.protocol.snapshots.denoising_states import read_state

    state = read_state_file(source)
    model = read_state(split_state(state, str(source))[0], str(source)).model
    kinds = {kind.model: kind for kind in _kinds()}
    if model not in kinds:
        raise InvalidRequest(
            f"{_NAME}: STATE must be of a model of an installed family ({', '.join(kinds)}), got one of"
            f" {model}; try installing the family's package"
        )
    kind = kinds[model]
    given = {name: value for name, value in arguments.items() if value is not None}
    may_change = (kind.changeable | kind.conditions) & {field.name for field in fields_of(kind)}
    raise_all(
        _NAME,
        [
            f"{name} must be left out for a video of {model}, got {value!r}; try a change of"
            f" {', '.join(sorted(may_change & arguments.keys()))}"
            for name, value in given.items()
            if name not in may_change
        ],
    )
    forms = files.check(kind, given.get("stop_after_step"), overwrite=overwrite, where=_NAME)
    return continued_request(kind, state, **given, **forms)


def _kinds() -> list[type[DenoisingRequest]]:
    """Return the requests of all families whose videos can be stopped."""
    from slipway_export.families import families

    found = [request for family in families() for request in family.requests]
    return [request for request in found if issubclass(request, DenoisingRequest)]


def _changes() -> dict[str, Field]:
    """Return the fields that some family lets change and that have an option, by name."""
    found: dict[str, Field] = {}
    for kind in _kinds():
        for field in fields_of(kind):
            is_plain = not isinstance(field.rule, Array | Image)
            if field.name in kind.changeable | kind.conditions and field.flag is not None and is_plain:
                found.setdefault(field.name, field)
    return found


def _change_option(field: Field) -> inspect.Parameter:
    """Return the option of a field, which the state fills if it is left out."""
    rule = field.rule
    text = rule.help[0].upper() + rule.help[1:]
    must = f", {rule.must}" if rule.must not in text else ""
    kept = field.name not in DenoisingRequest.changeable or field.name == "fps"
    note = "that of the stopped video" if kept else getattr(rule, "default", "") or field.default or "none"
    flag = f"--{(field.flag or field.name).replace('_', '-')}"
    annotation = typer.Option(flag, help=f"{text}{must}; by default, {note}.", show_default=False)
    return options.option(field.name, Annotated[field.kind | None, annotation], None)
