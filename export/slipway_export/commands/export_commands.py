"""The `families`, `checkpoint` and `export` commands: flags in, one call of the library, a report out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from typer.models import OptionInfo

from slipway_export.commands.config_file import config_option
from slipway_export.commands.optional_value import with_optional
from slipway_export.commands.terminal import Quiet, quiet_libraries, reporting
from slipway_export.engines.device import Device
from slipway_export.spec import DEFAULT_BUDGET, Axis, Engine, Precision
from slipway_serving.protocol.command_output import Json, print_json
from slipway_serving.protocol.errors import Cancelled, InvalidRequest, raise_all
from slipway_serving.runtime.torch_engine.options import COMPILE_MODES, Offload, Weights

if TYPE_CHECKING:
    from slipway_export.families import Registered
    from slipway_export.options import ExportOptions
    from slipway_export.run import Publish
    from slipway_export.spec import Family

Value = TypeVar("Value")
FamilyName = Annotated[str, typer.Argument(help="A family; `slipway families` lists them.", metavar="FAMILY")]


def families(json: Json = False) -> None:
    """List the model families, where they come from, their presets and the models that clients call."""
    from slipway_export.families import registered

    if json:
        print_json({"families": [_family_document(known) for known in registered()]})
        return
    for known in registered():
        family = known.family
        if family is None:
            typer.echo(f"{known.name}: cannot be used: {known.problem}")
            typer.echo(f"  from        {known.origin}")
            continue
        typer.echo(f"{family.name}: {family.summary}")
        typer.echo(f"  from        {known.origin}")
        typer.echo(f"  checkpoint  {family.upstream}")
        typer.echo(f"  serves      {', '.join(family.served)}")
        for name, preset in family.presets.items():
            typer.echo(f"  preset      {name}: {preset.summary}")
        for name, variant in family.variants.items():
            typer.echo(f"  variant     {name}: {variant.summary}")


def _family_document(known: Registered) -> dict[str, object]:
    family = known.family
    if family is None:
        return {"name": known.name, "origin": known.origin, "problem": known.problem}
    return {
        "name": family.name,
        "origin": known.origin,
        "problem": None,
        "summary": family.summary,
        "checkpoint": family.upstream,
        "served": list(family.served),
        "presets": {name: preset.summary for name, preset in family.presets.items()},
        "variants": {name: variant.summary for name, variant in family.variants.items()},
    }


def checkpoint(
    family: FamilyName,
    preset: Annotated[str, typer.Option(help="Which checkpoint to write.")] = "tiny",
    output: Annotated[Path, typer.Option(help="Folder to write; must be empty or new.")] = Path("checkpoint"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Write a preset's checkpoint, random or trained, in the layout of the public one."""
    from slipway_export.families import family_named

    chosen = family_named(family)
    if preset not in chosen.presets:
        raise InvalidRequest(f"preset must be one of {', '.join(chosen.presets)}, got {preset!r}")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InvalidRequest(f"output must be an empty or new folder, got {output}")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"output must be a folder that can be written, got {output} ({error})") from None
    with quiet_libraries():
        chosen.presets[preset].write(output, seed)
    if not quiet:
        typer.echo(str(output))


def export(
    family: FamilyName,
    repository: Annotated[
        Path | None, typer.Option(help="Triton model repository; created where missing.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--output-path",
            "--output-name",
            help="Instead of --repository: a file for the graph of one --component.",
            metavar="FILE.onnx",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="A preset, a local folder, or a hub id.", metavar="PRESET|DIR|HUB_ID")
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="A part that does not come from the checkpoint, e.g. text_encoder=DIR; may be repeated.",
            metavar="NAME=DIR|HUB_ID",
        ),
    ] = None,
    model_path: Annotated[
        str | None,
        typer.Option(
            help="Instead of --checkpoint: the one part that --component is made of, by itself.",
            metavar="DIR|HUB_ID",
        ),
    ] = None,
    subfolder: Annotated[
        str | None, typer.Option(help="Folder of --model-path that has the part.", metavar="NAME")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Instead of --checkpoint: a model that was trained here.", metavar="ID")
    ] = None,
    models: Annotated[Path, typer.Option(help="Folder of the trained models.")] = Path("trained"),
    conf: Annotated[Path | None, named_file_option("conf")] = None,
    ckpt: Annotated[Path | None, named_file_option("ckpt")] = None,
    config_path: Annotated[Path | None, named_file_option("config-path")] = None,
    checkpoint_path: Annotated[Path | None, named_file_option("checkpoint-path")] = None,
    config: Annotated[Path | None, config_option()] = None,
    engine: Annotated[list[str] | None, engine_option()] = None,
    precision: Annotated[list[str] | None, precision_option()] = None,
    place: Annotated[
        list[str] | None,
        typer.Option(
            help="Where a component's model runs: cpu, gpu or gpu:0,1, 2xgpu for two instances; or"
            " grpc://HOST:PORT, another server that has it. May be repeated.",
            metavar="NAME=WHERE",
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        torch_option(
            "weights", f"how weights are held: {', '.join(Weights)}; as the precision has them by default"
        ),
    ] = None,
    compile_: Annotated[
        list[str] | None,
        torch_option(
            "compile", f"torch.compile, in a mode: {', '.join(COMPILE_MODES)}; eager without", "MODE"
        ),
    ] = None,
    attention: Annotated[
        list[str] | None,
        torch_option("attention", "sdpa, or a backend of diffusers' dispatcher: flash, sage, …"),
    ] = None,
    cuda_graphs: Annotated[
        bool,
        typer.Option("--cuda-graphs", help="Engine torch, on a GPU: record each shape's work and replay it."),
    ] = False,
    offload: Annotated[
        list[str] | None,
        torch_option("offload", f"what leaves the GPU when not needed: {', '.join(Offload)}"),
    ] = None,
    component: Annotated[
        list[str] | None,
        typer.Option(
            "--component",
            "--model-type",
            help="Export only this component; may be repeated. --output also takes NAME/GRAPH.",
            metavar="NAME",
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            help="Range of an axis, e.g. latent_frames=1:21:41; may be repeated.", metavar="NAME=MIN:OPT:MAX"
        ),
    ] = None,
    batch_size: Annotated[int | None, size_option("batch-size")] = None,
    num_output_frames: Annotated[int | None, size_option("num-output-frames")] = None,
    fixed_shapes: Annotated[
        bool, typer.Option("--fixed-shapes", help="Every axis has the one size that is traced, its opt.")
    ] = False,
    variant: Annotated[
        str | None,
        typer.Option(
            "--variant",
            "--mode",
            help="Another way to serve the checkpoint; `slipway families` lists them.",
            metavar="NAME",
        ),
    ] = None,
    verify_budget: Annotated[
        float,
        typer.Option(
            help="Seconds that verification may take by its estimate; what it leaves out is named.",
            metavar="SECONDS",
        ),
    ] = DEFAULT_BUDGET,
    verify_device: Annotated[
        Device, typer.Option(help="What PyTorch and ONNX Runtime verify the graphs on.")
    ] = Device.CPU,
    opset_version: Annotated[
        int | None, typer.Option(help="ONNX operator set, 17 to 23; 22 at most for tensorrt and portable.")
    ] = None,
    simplify: Annotated[bool, typer.Option("--simplify", help="Run onnxslim over the graphs.")] = False,
    check_only: Annotated[
        bool, typer.Option("--check-only", help="Export and verify, place nothing.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what it takes in each precision, from configurations alone.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace models that slipway did not write, or that were changed.")
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Make every graph anew, not only what is not staged or placed already."),
    ] = False,
    queue_limit: Annotated[
        int | None,
        typer.Option(
            help="Requests that may wait for each model that has such a limit; one more is refused.",
            metavar="REQUESTS",
        ),
    ] = None,
    queue_timeout_s: Annotated[
        float | None,
        typer.Option(help="Seconds that each video may wait, then it is refused.", metavar="SECONDS"),
    ] = None,
    triton: Annotated[str | None, triton_option()] = None,
    control_token_file: Annotated[Path | None, control_token_option()] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Export a checkpoint into a model repository, verified against PyTorch."""
    from rich.console import Console

    from slipway_export.commands.plan_commands import print_plan
    from slipway_export.commands.report import export_document, print_export
    from slipway_export.engines.requested import parse_engines, parse_torch
    from slipway_export.families import family_named
    from slipway_export.options import ExportOptions
    from slipway_export.repository.placement import parse_places
    from slipway_export.repository.queues import QueueLimits
    from slipway_export.run import run_export
    from slipway_export.trained_models import Library, export_model

    chosen = family_named(family)
    files = given(
        {"conf": conf, "ckpt": ckpt, "config-path": config_path, "checkpoint-path": checkpoint_path}
    )
    components = tuple(chosen.component_named(name) for name in component or ())
    parts = parse_parts(part or ())
    if model_path is not None or subfolder is not None:
        parts |= part_alone(chosen, components, model_path, subfolder, parts)
    given_alone = bool(parts and chosen.parts_alone and not (checkpoint or model or files))
    alone = model_path is not None or given_alone
    if (checkpoint is not None) + (model is not None) + bool(files) + alone != 1:
        needed = [f"--{role}" for role, file in chosen.files.items() if file.default is None]
        usual_ways = "--checkpoint, --model-path, --model" if chosen.parts_alone else "--checkpoint, --model"
        ways = [usual_ways, *([f"and {' with '.join(needed)}"] if needed else [])]
        raise InvalidRequest(f"export: one of {', '.join(ways)} must be given, got several or none")
    if files and repository is None and output is None:
        usual = chosen.variant(variant).graph_file
        output = None if usual is None else usual.path
    of_all, of_components = parse_precisions(precision or ())
    engine_of_all, engines = parse_engines(engine or ())
    if plan and model is not None:
        raise InvalidRequest(f"plan must be used with --checkpoint or files, got --model {model}")
    options = ExportOptions(
        checkpoint=checkpoint or "",
        # A plan has no place to write to.
        repository=Path() if plan and output is None else repository,
        engine=engine_of_all,
        engines=engines,
        torch=parse_torch(
            weights or (), compile_ or (), attention or (), offload or (), cuda_graphs=cuda_graphs
        ),
        precision=of_all,
        precisions=of_components,
        places=parse_places(tuple(place or ())),
        components=components,
        opset=opset_version,
        simplify=simplify,
        check_only=check_only,
        force=force,
        axes=tuple(parse_axis(text) for text in axis or ()),
        sizes=given({"batch-size": batch_size, "num-output-frames": num_output_frames}),
        fixed_shapes=fixed_shapes,
        variant=variant,
        parts=parts,
        output=output,
        files=files,
        verify_budget=verify_budget,
        verify_device=verify_device,
        fresh=fresh,
        queues=QueueLimits(queue_limit, queue_timeout_s),
    )
    if plan:
        print_plan(chosen, options, json=json)
        return
    publish = publisher(triton, control_token_file, repository)
    # The stream itself: the exporter's own words to whatever is stderr by then are kept away.
    progress = Console(file=sys.stderr, quiet=quiet)
    try:
        with quiet_libraries(), reporting(progress) as report:
            if model is None:
                result = run_export(chosen, options, report, publish)
            else:
                family_of_model, library = trained_family(chosen), Library(models)
                result = export_model(family_of_model, library, model, options, report, publish)
    except KeyboardInterrupt:
        raise Cancelled(f"export: interrupted; {after_interrupt(options)}") from None
    if json:
        print_json(export_document(result, repository, output))
    elif not quiet:
        print_export(result, repository, output)


def after_interrupt(options: ExportOptions) -> str:
    """Return what an interrupted export has left, and what the same command would do."""
    if options.output is not None:
        return f"{options.output} is as it was before, and the same command begins anew"
    if options.fresh:
        return "without --fresh the same command continues after the last finished graph"
    return "the same command continues after the last finished graph"


def engine_option() -> OptionInfo:
    """Return the option for what runs the components of an export, and single ones."""
    option: OptionInfo = typer.Option(
        "--engine",
        help=f"What runs the components: {', '.join(Engine)}; onnxruntime by default. NAME=ENGINE is that of"
        " one component; may be repeated.",
        metavar="[NAME=]ENGINE",
    )
    return option


def torch_option(name: str, text: str, optional: str = "") -> OptionInfo:
    """Return an option of engine ``torch`` that holds for all components or for single ones.

    Args:
        name: Name of the option.
        text: Help text of the option.
        optional: Name of the value in the help if the value may be left out.
    """
    value = optional or name.upper()
    option: OptionInfo = typer.Option(
        f"--{name}",
        help=f"Engine torch: {text}. NAME={value} is that of one component; may be repeated.",
        metavar=f"[[NAME=]{value}]" if optional else f"[NAME=]{value}",
    )
    return option


WithCompile = with_optional({"--compile": COMPILE_MODES})
"""The class of commands that export: their ``--compile`` may stand alone."""


def precision_option() -> OptionInfo:
    """Return the option for the precision of an export, and of single components."""
    option: OptionInfo = typer.Option(
        "--precision",
        help=f"Of weights and arithmetic: {', '.join(Precision)}; fp32 by default. NAME=PRECISION is that of"
        " one component; may be repeated.",
        metavar="[NAME=]PRECISION",
    )
    return option


def parse_precisions(texts: Sequence[str]) -> tuple[Precision, dict[str, Precision]]:
    """Parse precisions, ``PRECISION`` or ``NAME=PRECISION`` each; names may have dashes for underscores.

    Returns:
        That of all components, and those of components that differ, by name.

    Raises:
        InvalidRequest: there is no such precision, or one is given twice.
    """
    found: dict[str, Precision] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        name = name.replace("-", "_")
        if value not in tuple(Precision) or (not name and "=" in text):
            raise InvalidRequest(
                f"precision must be one of {', '.join(Precision)}, or NAME=PRECISION for a component, got"
                f" {text!r}"
            )
        if name in found:
            raise InvalidRequest(f"precision of {name or 'all'} must be given once, got {text!r} too")
        found[name] = Precision(value)
    return found.pop("", Precision.FP32), found


def named_file_option(role: str) -> OptionInfo:
    """Return the option for a file of a checkpoint that is given as files; see :attr:`Family.files`."""
    option: OptionInfo = typer.Option(
        f"--{role}",
        help=f"Instead of --checkpoint, for families that take files: their {role}, of any name.",
        metavar="FILE",
    )
    return option


def size_option(name: str) -> OptionInfo:
    """Return the option for the size that an axis is traced at; see :attr:`Family.sizes`."""
    option: OptionInfo = typer.Option(
        f"--{name}", min=1, help="Instead of --axis, for families that have it: the size that is traced."
    )
    return option


def given(values: Mapping[str, Value | None]) -> dict[str, Value]:
    """Return the options that were given, by name."""
    return {name: value for name, value in values.items() if value is not None}


def triton_option() -> OptionInfo:
    """Return the option that names a running server."""
    option: OptionInfo = typer.Option(
        "--triton",
        help="A running server of the repository, told to load what is placed.",
        metavar="HOST:HTTP_PORT",
    )
    return option


def control_token_option() -> OptionInfo:
    """Return the option for a running server's control token."""
    option: OptionInfo = typer.Option(
        "--control-token-file", help="File with the token that the server wants for loading models."
    )
    return option


def publisher(triton: str | None, control_token_file: Path | None, repository: Path | None) -> Publish:
    """Return what tells a running server of placed models; nothing is told where none is named.

    Raises:
        InvalidRequest: the address or the token is not as it must be.
    """
    from slipway_serving.triton.control import ModelControl, read_token

    if triton is None:
        if control_token_file is not None:
            raise InvalidRequest(
                f"control-token-file must be given with --triton only, got {control_token_file}"
            )
        return lambda _: None
    if repository is None:
        raise InvalidRequest(f"triton must be given with --repository only, got {triton}")
    token = read_token(control_token_file) if control_token_file else None
    return partial(ModelControl(triton, token).follow, repository)


def trained_family(family: Family) -> Family:
    """Return the family of the models that users train for a family.

    Raises:
        InvalidRequest: there are none.
    """
    from slipway_export.families import families, family_named

    if family.trained is None:
        able = ", ".join(other.name for other in families() if other.trained is not None)
        raise InvalidRequest(
            f"model must be left out for {family.name}, whose checkpoints are not trained here, got one;"
            f" families with trained models: {able}"
        )
    return family_named(family.trained)


def parse_parts(texts: Sequence[str]) -> dict[str, str]:
    """Parse the places of parts, ``name=DIR|HUB_ID`` each; names may have dashes for underscores.

    Raises:
        InvalidRequest: a text is not of that form, or a part is given twice.
    """
    parts: dict[str, str] = {}
    for text in texts:
        name, _, place = text.partition("=")
        name = name.replace("-", "_")
        if not name or not place:
            raise InvalidRequest(f"part must be NAME=DIR|HUB_ID, got {text!r}")
        if name in parts:
            raise InvalidRequest(f"part {name} must be given once, got {parts[name]!r} and {place!r}")
        parts[name] = place
    return parts


def part_alone(
    family: Family,
    components: Sequence[str],
    model_path: str | None,
    subfolder: str | None,
    parts: Mapping[str, str],
) -> dict[str, str]:
    """Return the place of the one checkpoint part that the components are made of.

    Args:
        family: Family of the components.
        components: Names of the components to export.
        model_path: Folder or hub id of the part, or of a checkpoint that contains it.
        subfolder: Folder of the part within `model_path`.
        parts: Places of the parts that other options name.

    Raises:
        InvalidRequest: `model_path` is missing, or the components are not made of one part.
    """
    found = {part.name for part in family.parts if set(components) & set(part.components)}
    able = family.parts_alone
    problems = []
    if model_path is None:
        problems.append(f"subfolder must be given with --model-path, got {subfolder} alone")
    if len(found) != 1 or not set(components) <= set(able):
        rule = f"one --component of {', '.join(able)}" if able else "another option; try --checkpoint"
        got = ", ".join(components) or "none"
        problems.append(f"model-path must be given with {rule} for {family.name}, got {got}")
    problems += [f"part {name} must be given once, got --model-path too" for name in found & parts.keys()]
    raise_all("export", problems)
    return {found.pop(): f"{model_path}/{subfolder}" if subfolder else str(model_path)}


def parse_axis(text: str) -> Axis:
    """Parse ``name=min:opt:max``.

    Raises:
        InvalidRequest: the text is not of that form, or the range is not in order.
    """
    name, _, sizes = text.partition("=")
    parts = sizes.split(":")
    if not name or len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise InvalidRequest(f"axis must be NAME=MIN:OPT:MAX in whole numbers, got {text!r}")
    return Axis(name, *(int(part) for part in parts))
