"""Groups of the options that every `slipway export FAMILY` command has.

Each group is a frozen dataclass whose fields carry their flag, help and default.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer.models import OptionInfo

from slipway_export.commands.config_file import config_option
from slipway_export.commands.server_options import control_token_option, triton_option
from slipway_export.commands.terminal import Quiet
from slipway_export.engines.device import Device
from slipway_export.engines.tensorrt.plan import Profiles
from slipway_export.spec import DEFAULT_BUDGET, Engine, Precision
from slipway_serving.protocol.command_output import Json
from slipway_serving.runtime.torch_engine.options import COMPILE_MODES, Offload, Weights


def _torch_option(name: str, text: str, optional: str = "") -> OptionInfo:
    """Return an option of engine ``torch`` that holds for all components or for single ones.

    Args:
        name: Name of the option.
        text: Help text of the option.
        optional: Name of the value in the help if the value may be left out.
    """
    value = optional or name.upper()
    option: OptionInfo = typer.Option(
        f"--{name}",
        help=f"Engine torch: {text}. NAME={value} sets it for one component; may be repeated.",
        metavar=f"[[NAME=]{value}]" if optional else f"[NAME=]{value}",
    )
    return option


@dataclass(frozen=True)
class TargetOptions:
    """Options for the place of the result.

    Args:
        repository: Triton model repository.
        output: File for one graph.
        force: True to replace models that Slipway did not write.
        triton: Address of a running server.
        control_token_file: File with that server's control token.
    """

    repository: Annotated[
        Path | None, typer.Option(help="Triton model repository; the export creates it if it is missing.")
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--output-path",
            "--output-name",
            help="File for the graph of one --component, instead of --repository.",
            metavar="FILE.onnx",
        ),
    ] = None
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace models that Slipway did not write or that were changed since."),
    ] = False
    triton: Annotated[str | None, triton_option()] = None
    control_token_file: Annotated[Path | None, control_token_option()] = None


@dataclass(frozen=True)
class SourceOptions:
    """Options for the checkpoint.

    Args:
        checkpoint: Preset, folder or hub id.
        part: Places of parts that do not come from the checkpoint.
        variant_file: Variant of the weight files.
        lora: LoRAs, ``[COMPONENT=]FILE|HUB_ID[:SCALE]``.
        steps_list: Timesteps of a network for few steps, separated by commas.
        flow_shift: Shift of the served model's noise schedule.
        model_path: Place of the one part that a component consists of.
        subfolder: Folder of that part within `model_path`.
        model: ID of a model that a user trained.
        models: Folder of the trained models.
        config: YAML file with options.
    """

    checkpoint: Annotated[
        str | None, typer.Option(help="A preset, a local folder, or a hub id.", metavar="PRESET|DIR|HUB_ID")
    ] = None
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Place of a part that does not come from the checkpoint, e.g. text_encoder=DIR, or a file of"
            " its weights; may be repeated.",
            metavar="NAME=DIR|FILE|HUB_ID",
        ),
    ] = None
    variant_file: Annotated[
        str | None,
        typer.Option(
            help="Variant of the weight files, e.g. fp16 for *.fp16.safetensors; it is read of each part that"
            " has it.",
            metavar="NAME",
        ),
    ] = None
    lora: Annotated[
        list[str] | None,
        typer.Option(
            help="LoRA to merge into a component's weights, e.g. denoiser_high=FILE:0.8; may be repeated."
            " none declines the LoRA files beside the weights.",
            metavar="[COMPONENT=]FILE|HUB_ID[:SCALE]",
        ),
    ] = None
    steps_list: Annotated[
        str | None,
        typer.Option(
            help="Timesteps of a network for few steps, descending, 1000 to 1, e.g. 1000,750,500,250: the"
            " served model takes them by default, without guidance.",
            metavar="N,N,…",
        ),
    ] = None
    flow_shift: Annotated[
        float | None,
        typer.Option(
            help="Shift of the noise schedule that the served model takes by default, above 0; by default"
            " the checkpoint's.",
            metavar="SHIFT",
        ),
    ] = None
    model_path: Annotated[
        str | None,
        typer.Option(
            help="Place of the one part that --component consists of, instead of --checkpoint.",
            metavar="DIR|HUB_ID",
        ),
    ] = None
    subfolder: Annotated[
        str | None, typer.Option(help="Folder of the part within --model-path.", metavar="NAME")
    ] = None
    model: Annotated[
        str | None,
        typer.Option(help="Model that `slipway train` made, instead of --checkpoint.", metavar="ID"),
    ] = None
    models: Annotated[Path, typer.Option(help="Folder of the trained models.")] = Path("trained")
    config: Annotated[Path | None, config_option()] = None


@dataclass(frozen=True)
class ServingOptions:
    """Options for the engine of each component and for where it runs.

    Args:
        engine: Engines, ``[NAME=]ENGINE``.
        precision: Precisions, ``[NAME=]PRECISION``.
        place: Devices or servers of components, ``NAME=WHERE``.
        provider: Execution providers of ONNX Runtime, ``[NAME=]PROVIDER``.
        weights: Formats of PyTorch's weights.
        compile_: Modes of ``torch.compile``.
        attention: Attention backends.
        cuda_graphs: True to record and replay CUDA graphs.
        offload: Parts that leave the GPU while they are not needed.
        queue_limit: Number of requests that may wait for each model.
        queue_timeout_s: Longest time that a video may wait, in seconds.
    """

    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            help=f"Engine that runs the components: {', '.join(Engine)}; onnxruntime by default. NAME=ENGINE"
            " sets it for one component; may be repeated.",
            metavar="[NAME=]ENGINE",
        ),
    ] = None
    precision: Annotated[
        list[str] | None,
        typer.Option(
            "--precision",
            help=f"Precision of weights and arithmetic: {', '.join(Precision)}; fp32 by default."
            " NAME=PRECISION sets it for one component; may be repeated.",
            metavar="[NAME=]PRECISION",
        ),
    ] = None
    place: Annotated[
        list[str] | None,
        typer.Option(
            help="Device of a component's model: cpu, gpu, gpu:0,1 or 2xgpu for two instances; or"
            " grpc://HOST:PORT, another server that serves it. May be repeated.",
            metavar="NAME=WHERE",
        ),
    ] = None
    provider: Annotated[
        list[str] | None,
        typer.Option(
            help="What runs a graph in ONNX Runtime on a GPU, where --place puts it: cuda, or tensorrt for"
            " graphs of engine portable. NAME=PROVIDER sets it for one component; may be repeated.",
            metavar="[NAME=]PROVIDER",
        ),
    ] = None
    weights: Annotated[
        list[str] | None,
        _torch_option(
            "weights", f"format of the weights, {', '.join(Weights)}; by default that of the precision"
        ),
    ] = None
    compile_: Annotated[
        list[str] | None,
        _torch_option(
            "compile",
            f"torch.compile in a mode, {', '.join(COMPILE_MODES)}; eager execution without it",
            "MODE",
        ),
    ] = None
    attention: Annotated[
        list[str] | None,
        _torch_option("attention", "sdpa, or a backend of diffusers' attention dispatcher: flash, sage, …"),
    ] = None
    cuda_graphs: Annotated[
        bool,
        typer.Option(
            "--cuda-graphs", help="Engine torch on a GPU: record the work of each shape and replay it."
        ),
    ] = False
    offload: Annotated[
        list[str] | None,
        _torch_option("offload", f"what leaves the GPU while it is not needed: {', '.join(Offload)}"),
    ] = None
    queue_limit: Annotated[
        int | None,
        typer.Option(
            help="Number of requests that may wait for each model with a queue limit; the server refuses"
            " further ones.",
            metavar="REQUESTS",
        ),
    ] = None
    queue_timeout_s: Annotated[
        float | None,
        typer.Option(
            help="Longest time that a video may wait in the queue, in seconds; then the server refuses it.",
            metavar="SECONDS",
        ),
    ] = None


@dataclass(frozen=True)
class BuildOptions:
    """Options for the engines of TensorRT and TensorRT-RTX.

    Args:
        target: Compute capabilities to build for, separated by commas.
        profiles: Optimization profiles.
        workspace_gib: Largest scratch memory of a layer, in GiB.
        builder_level: Optimization level of the builder.
        timing_cache: File of the builder's measured times.
        refit: True to build engines without weights.
        weight_streaming: True to let engines stream weights from host memory.
    """

    target: Annotated[
        str | None,
        typer.Option(
            help="GPUs that the engines of tensorrt-rtx are built for, e.g. sm89 or sm80,sm120; by default"
            " the GPU of this machine.",
            metavar="SM[,SM…]",
        ),
    ] = None
    profiles: Annotated[
        Profiles | None,
        typer.Option(
            help="Shapes that the engines are built for: the whole range of every axis in one profile"
            " (flexible, the default), or a further profile for the traced sizes alone (latency)."
        ),
    ] = None
    workspace_gib: Annotated[
        float | None,
        typer.Option(help="Largest scratch memory of a layer of an engine, in GiB.", metavar="GIB"),
    ] = None
    builder_level: Annotated[
        int | None,
        typer.Option(
            help="Optimization level of the builder, 0 to 5; a higher one takes longer.", metavar="0..5"
        ),
    ] = None
    timing_cache: Annotated[
        Path | None,
        typer.Option(
            help="File that the builder of engine tensorrt reads measured times from and adds new ones to.",
            metavar="FILE",
        ),
    ] = None
    refit: Annotated[
        bool,
        typer.Option(
            "--refit",
            help="Build engines of tensorrt-rtx without weights, which take them from the graphs beside them"
            " when they are loaded; needs a machine with an NVIDIA driver.",
        ),
    ] = False
    weight_streaming: Annotated[
        bool,
        typer.Option(
            "--weight-streaming",
            help="Let engines keep weights in host memory and stream them to a GPU that is too small.",
        ),
    ] = False


@dataclass(frozen=True)
class GraphOptions:
    """Options for what is exported, and for the form of the graphs.

    Args:
        component: Names of components.
        axis: Ranges of axes, ``NAME=MIN:OPT:MAX``.
        fixed_shapes: True to export every axis with its traced size only.
        variant: Name of a variant of the family.
        opset_version: ONNX operator set.
        simplify: True to run onnxslim.
    """

    component: Annotated[
        list[str] | None,
        typer.Option(
            "--component",
            "--model-type",
            help="Export only this component; may be repeated. --output also takes NAME/GRAPH.",
            metavar="NAME",
        ),
    ] = None
    axis: Annotated[
        list[str] | None,
        typer.Option(
            help="Range of an axis, e.g. latent_frames=1:21:41; may be repeated.", metavar="NAME=MIN:OPT:MAX"
        ),
    ] = None
    fixed_shapes: Annotated[
        bool,
        typer.Option("--fixed-shapes", help="Export every axis with the one size that is traced, its opt."),
    ] = False
    variant: Annotated[
        str | None,
        typer.Option(
            "--variant",
            "--mode",
            help="Another way to serve the checkpoint; `slipway families` lists them.",
            metavar="NAME",
        ),
    ] = None
    opset_version: Annotated[
        int | None,
        typer.Option(help="ONNX operator set, 17 to 23; at most 22 for tensorrt, tensorrt-rtx and portable."),
    ] = None
    simplify: Annotated[bool, typer.Option("--simplify", help="Run onnxslim over the graphs.")] = False


@dataclass(frozen=True)
class RunOptions:
    """Options for how the export runs and what it reports.

    Args:
        verify_budget: Longest estimated time of the verification, in seconds.
        verify_device: Device of the verification.
        check_only: True to export and verify without placing anything.
        plan: True to print an estimate only.
        fresh: True to reuse nothing.
        json: True to print a JSON document.
        quiet: True to print errors only.
    """

    verify_budget: Annotated[
        float,
        typer.Option(
            help="Longest estimated time of the verification, in seconds; the export names the points that it"
            " leaves out.",
            metavar="SECONDS",
        ),
    ] = DEFAULT_BUDGET
    verify_device: Annotated[
        Device, typer.Option(help="Device on which PyTorch and ONNX Runtime verify the graphs.")
    ] = Device.CPU
    check_only: Annotated[
        bool, typer.Option("--check-only", help="Export and verify, but place nothing.")
    ] = False
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="Print disk, memory and time needed in each precision, from configurations alone."
        ),
    ] = False
    fresh: Annotated[bool, typer.Option("--fresh", help="Rebuild everything, reuse nothing.")] = False
    json: Json = False
    quiet: Quiet = False
