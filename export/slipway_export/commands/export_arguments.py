"""Arguments of `slipway export FAMILY`: the general options, and those that a family adds.

:func:`parameters` turns the groups of options, and the file roles and sizes that a family declares, into the
parameters of that family's command. :func:`export_options` turns their values into the options of an export.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.models import OptionInfo

from slipway_export.commands.export_groups import (
    BuildOptions,
    GraphOptions,
    RunOptions,
    ServingOptions,
    SourceOptions,
    TargetOptions,
)
from slipway_export.commands.sources import parse_parts, part_alone
from slipway_export.spec import Axis
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from slipway_export.checkpoint.lora.requests import RequestedAdditions
    from slipway_export.options import ExportOptions
    from slipway_export.spec import Family


@dataclass(frozen=True)
class ExportArguments:
    """Arguments of one `slipway export FAMILY` command, in groups.

    Args:
        target: Destination of the result.
        source: Checkpoint.
        serving: Engines and placements of the components.
        build: Options of TensorRT's builder.
        graphs: Components and form of the graphs.
        run: Verification and reports.
        files: Files of the checkpoint by role, for a family that declares roles.
        sizes: Sizes that axes are traced at, by the family's option.
    """

    target: TargetOptions
    source: SourceOptions
    serving: ServingOptions
    build: BuildOptions
    graphs: GraphOptions
    run: RunOptions
    files: Mapping[str, Path] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


_GROUPS: tuple[type[Any], ...] = (
    TargetOptions,
    SourceOptions,
    ServingOptions,
    BuildOptions,
    GraphOptions,
    RunOptions,
)


def parameters(family: Family) -> list[inspect.Parameter]:
    """Return the parameters of a family's export command: the general options, and the family's own.

    Raises:
        InvalidRequest: A file role or a size of the family has the name of a general option.
    """
    general = [parameter for group in _GROUPS for parameter in _parameters(group)]
    specific = {
        **{role: Annotated[Path | None, _file_option(role)] for role in _roles(family)},
        **{size: Annotated[int | None, _size_option(size, axis)] for size, axis in family.sizes.items()},
    }
    reserved = {parameter.name for parameter in general}
    if clash := sorted(name for name in specific if _identifier(name) in reserved):
        raise InvalidRequest(
            f"family {family.name}: names of file roles and sizes must differ from the options of `slipway"
            f" export`, got {', '.join(clash)}"
        )
    return [*general, *(_parameter(_identifier(name), kind, None) for name, kind in specific.items())]


def parse(family: Family, values: Mapping[str, Any]) -> ExportArguments:
    """Return the arguments of a family's command in groups.

    Args:
        family: Family of the command.
        values: Values of all parameters of :func:`parameters`, by name.
    """
    target, source, serving, build, graphs, run = (
        group(**{each.name: values[each.name] for each in fields(group)}) for group in _GROUPS
    )
    files = {role: values[_identifier(role)] for role in _roles(family)}
    sizes = {size: values[_identifier(size)] for size in family.sizes}
    return ExportArguments(
        target,
        source,
        serving,
        build,
        graphs,
        run,
        files={role: path for role, path in files.items() if path is not None},
        sizes={size: value for size, value in sizes.items() if value is not None},
    )


def export_options(family: Family, arguments: ExportArguments) -> ExportOptions:
    """Return the options of an export from its arguments.

    Raises:
        InvalidRequest: An argument breaks its rule, or none or several sources are given.
    """
    from slipway_export.engines.providers import parse_providers
    from slipway_export.engines.requested import parse_engines, parse_precisions, parse_torch
    from slipway_export.engines.tensorrt.requested import parse_request
    from slipway_export.options import ExportOptions
    from slipway_export.repository.placement import parse_placements
    from slipway_export.repository.queues import QueueLimits

    source, serving, graphs, run = arguments.source, arguments.serving, arguments.graphs, arguments.run
    components = tuple(family.component_named(name) for name in graphs.component or ())
    precision, precisions = parse_precisions(serving.precision or ())
    engine, engines = parse_engines(serving.engine or ())
    output = _output(family, arguments)
    return ExportOptions(
        checkpoint=source.checkpoint or "",
        # A plan has no place to write to.
        repository=Path() if run.plan and output is None else arguments.target.repository,
        engine=engine,
        engines=engines,
        torch=parse_torch(
            serving.weights or (),
            serving.compile_ or (),
            serving.attention or (),
            serving.offload or (),
            cuda_graphs=serving.cuda_graphs,
        ),
        tensorrt=parse_request(
            arguments.build.target,
            arguments.build.profiles,
            arguments.build.workspace_gib,
            arguments.build.builder_level,
            arguments.build.timing_cache,
            refit=arguments.build.refit,
            weight_streaming=arguments.build.weight_streaming,
        ),
        precision=precision,
        precisions=precisions,
        placements=parse_placements(tuple(serving.place or ())),
        providers=parse_providers(serving.provider or ()),
        components=components,
        opset=graphs.opset_version,
        simplify=graphs.simplify,
        check_only=run.check_only,
        force=arguments.target.force,
        axes=tuple(parse_axis(text) for text in graphs.axis or ()),
        sizes=arguments.sizes,
        fixed_shapes=graphs.fixed_shapes,
        variant=graphs.variant,
        parts=_parts(family, arguments, components),
        additions=_additions(source),
        variant_file=source.variant_file or "",
        output=output,
        files=arguments.files,
        verify_budget=run.verify_budget,
        verify_device=run.verify_device,
        fresh=run.fresh,
        queues=QueueLimits(serving.queue_limit, serving.queue_timeout_s),
    )


def _additions(source: SourceOptions) -> RequestedAdditions:
    """Return the LoRAs and the schedule that the user adds to the checkpoint."""
    from slipway_export.checkpoint.lora.requests import NONE, RequestedAdditions, parse_loras
    from slipway_export.spec.schedule_defaults import parse_schedule

    texts = source.lora or ()
    found = RequestedAdditions(
        parse_loras(texts), parse_schedule(source.steps_list, source.flow_shift), NONE in texts
    )
    if source.model is not None and (texts or found.schedule):
        raise InvalidRequest(
            f"lora, steps-list and flow-shift require --checkpoint, got --model {source.model}"
        )
    return found


def _output(family: Family, arguments: ExportArguments) -> Path | None:
    """Return the file of the graph; upstream's own file name if only files of the checkpoint are given."""
    target = arguments.target
    if not arguments.files or target.repository is not None or target.output is not None:
        return target.output
    usual = family.variant(arguments.graphs.variant).graph_file
    return None if usual is None else usual.path


def _parts(family: Family, arguments: ExportArguments, components: Sequence[str]) -> dict[str, str]:
    """Return the sources of parts, and check that exactly one source of the checkpoint is given."""
    source, files = arguments.source, arguments.files
    parts = parse_parts(source.part or ())
    if source.model_path is not None or source.subfolder is not None:
        parts |= part_alone(family, components, source.model_path, source.subfolder, parts)
    only_parts = bool(parts and family.parts_alone and not (source.checkpoint or source.model or files))
    alone = source.model_path is not None or only_parts
    if (source.checkpoint is not None) + (source.model is not None) + bool(files) + alone != 1:
        needed = [f"--{role}" for role, file in family.files.items() if file.default is None]
        usual = "--checkpoint, --model-path, --model" if family.parts_alone else "--checkpoint, --model"
        ways = [usual, *([f"and {' with '.join(needed)}"] if needed else [])]
        raise InvalidRequest(f"export: one of {', '.join(ways)} must be given, got several or none")
    if arguments.run.plan and source.model is not None:
        raise InvalidRequest(f"plan requires --checkpoint or files of one, got --model {source.model}")
    return parts


def parse_axis(text: str) -> Axis:
    """Parse an axis range, ``NAME=MIN:OPT:MAX``.

    Raises:
        InvalidRequest: The text is not of that form, or the range is not in order.
    """
    name, _, sizes = text.partition("=")
    parts = sizes.split(":")
    if not name or len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise InvalidRequest(f"axis must be NAME=MIN:OPT:MAX in whole numbers, got {text!r}")
    return Axis(name, *(int(part) for part in parts))


def _parameters(group: type[Any]) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    return [
        _parameter(each.name, kinds[each.name], None if each.default is MISSING else each.default)
        for each in fields(group)
    ]


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _identifier(name: str) -> str:
    return name.replace("-", "_")


def _roles(family: Family) -> list[str]:
    """Return the file roles of a family and of its variants, each once."""
    variants = (variant.files or {} for variant in family.variants.values())
    return list(dict.fromkeys(role for files in (family.files, *variants) for role in files))


def _file_option(role: str) -> OptionInfo:
    option: OptionInfo = typer.Option(
        f"--{role}",
        help=f"File of the checkpoint for role {role}, with any name, instead of --checkpoint.",
        metavar="FILE",
    )
    return option


def _size_option(name: str, axis: str) -> OptionInfo:
    option: OptionInfo = typer.Option(
        f"--{name}", min=1, help=f"Size at which the axis {axis} is traced, instead of --axis."
    )
    return option
