"""A component as a model that PyTorch serves: its placed files, and the served program run in this process.

The model's version folder contains what was read of the checkpoint to describe and to load the network, in
the layout of the checkpoint. A server may see the repository and not the checkpoint, so the files are placed
in the repository. They are hard links if the file system allows it, since one copy of 28 GB is enough.
Verification runs the program that the configuration names on these files.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.provenance import ReadRecord
from slipway_export.engines.choice import TorchChoice
from slipway_export.engines.device import Device
from slipway_export.engines.torch_network import CHECKPOINT_FOLDER, NetworkFacts, load
from slipway_export.repository.config import config_text, model_config
from slipway_export.repository.publish import link_or_copy, stage_authored
from slipway_export.spec import AuthoredModel, Component, Engine, Loading, Precision, Stepped
from slipway_export.verification.comparison import ParityRow, RunGraph
from slipway_export.verification.steps import stepped_parity_rows
from slipway_serving.protocol.axis_expressions import Point
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.json_facts import read_facts
from slipway_serving.runtime.torch_engine.network_description import (
    MODEL,
    NetworkDescription,
    network_file,
    options_file,
)

_SOURCE = "torch"


def stage_model(component: Component, name: str, choice: TorchChoice, staged: Path) -> None:
    """Stage a served model of a component: its configuration and the authored adapter.

    Args:
        component: Description of the component.
        name: Name of the served model.
        choice: Choice of how PyTorch runs it.
        staged: Staging folder.
    """
    path = stage_authored(AuthoredModel(name, source=_SOURCE), staged) / "config.pbtxt"
    config = text_format.Parse(path.read_text(encoding="utf-8"), pb.ModelConfig())
    config.MergeFrom(model_config(component, name, Engine.TORCH))
    for key, value in choice.options.parameters().items():
        config.parameters[key].string_value = value
    path.write_text(config_text(config), encoding="utf-8")


def stage_graph(component: Component, choice: TorchChoice, folder: Path) -> None:
    """Stage the file that makes an authored model run a component's network in place of a graph.

    Args:
        component: Description of the component.
        choice: Choice of how PyTorch runs it.
        folder: Version folder of the model.
    """
    sizes = component.points()["opt"]
    warmup = {tensor.name: tensor.at(sizes) for tensor in component.inputs}
    described = NetworkDescription(f"{load.__module__}:{load.__name__}", choice.options.parameters(), warmup)
    text = json.dumps(asdict(described), indent=2) + "\n"
    (folder / options_file(component.graph)).write_text(text, encoding="utf-8")


def stage_network(
    component: Component, facts: NetworkFacts, checkpoint: Checkpoint, planned: ReadRecord, folder: Path
) -> None:
    """Place the files of a component's network in a version folder, and the file that describes the network.

    Args:
        component: Description of the component.
        facts: Facts of the network, such as its family.
        checkpoint: Checkpoint that it is made of.
        planned: Record of what was read to describe it.
        folder: Version folder of the model.

    Raises:
        InvalidRequest: A file lies outside the checkpoint, or is invalid.
    """
    with checkpoint.recording() as loaded:
        component.load(Precision.FP32, Loading.META)
    # Copy files that were looked for but not read too, so that a plan of the copy finds the same files.
    looked_for = {name for name in planned.looked_for | loaded.looked_for if planned.locate(name).is_file()}
    placed = dict(_files(component, checkpoint, planned.content | loaded.content | looked_for))
    for name, path in placed.items():
        link_or_copy(path, folder / CHECKPOINT_FOLDER / name)
    text = replace(facts, files=tuple(placed)).to_json()
    (folder / network_file(component.graph)).write_text(text, encoding="utf-8")


def network_files(folder: Path, graph: str = MODEL) -> list[Path]:
    """Return the files of a version folder that make up a network, beginning with its description."""
    described = [folder / network_file(graph)]
    files = read_facts(NetworkFacts, described[0]).files
    if graph != MODEL:
        described.append(folder / options_file(graph))
    return [*described, *(folder / CHECKPOINT_FOLDER / name for name in files)]


def _files(component: Component, checkpoint: Checkpoint, names: set[str]) -> Iterator[tuple[str, Path]]:
    """Yield each file to place: its path within the checkpoint, and where it is."""
    for name in sorted(names):
        path, own = checkpoint.folder / name, name
        if Path(name).is_absolute():
            path = Path(name)
            if not path.is_relative_to(checkpoint.folder.absolute()):
                raise InvalidRequest(
                    f"{component.label}: files must lie within checkpoint {checkpoint.source} for engine"
                    f" torch, which places them in the repository, got {path}; try to copy it there"
                )
            own = path.relative_to(checkpoint.folder.absolute()).as_posix()
        else:
            path = checkpoint.file(name)
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                inside = file.relative_to(path)
                if file.is_file() and not any(part.startswith(".") for part in inside.parts):
                    yield (Path(own) / inside).as_posix(), file
        elif path.is_file():
            yield own, path


@contextlib.contextmanager
def run_in_process(folder: Path, device: Device, graph: str = MODEL) -> Iterator[RunGraph]:
    """Run a staged or placed model that PyTorch serves, in this process.

    Args:
        folder: Folder of the model.
        device: Device to run on.
        graph: Name of a graph that an authored model runs; by default the program of the model itself runs.

    Raises:
        InvalidRequest: The model does not load.
    """
    from slipway_serving.runtime.in_process import InProcessModels, read_config
    from slipway_serving.runtime.program import Call, Settings, load_program

    kind = "GPU" if device is Device.CUDA else "CPU"
    if graph != MODEL:
        from slipway_serving.runtime.graph import Graph

        opened = Graph(Settings(folder.name, folder / "1", {"name": folder.name}, kind), f"{graph}.onnx")
        yield lambda inputs: {
            name: value.numpy() for name, value in opened.run(inputs, in_memory=opened.outputs).items()
        }
        return
    program = load_program(Settings(folder.name, folder / "1", read_config(folder), kind))
    alone = InProcessModels(folder.parent)

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        (answer,) = program.run(Call(inputs, alone))
        return dict(answer)

    try:
        yield run
    finally:
        program.close()


def verify_steps_in_process(
    stepped: Stepped, folder: Path, choices: Mapping[str, TorchChoice], point: Point | None, device: Device
) -> list[ParityRow]:
    """Verify the steps of a network that PyTorch serves as one run.

    Args:
        stepped: Description of the stepped network.
        folder: Folder of the staged or placed model.
        choices: Choices of how PyTorch serves each of its graphs, by label.
        point: Sizes as for :func:`~slipway_export.verification.steps.verify_stepped`.
        device: Device to run on.
    """
    with contextlib.ExitStack() as opened:
        graphs = {
            graph.label: (
                opened.enter_context(run_in_process(folder, device, graph.graph)),
                runtime_name(choices[graph.label], device),
            )
            for graph in (stepped.first, stepped.next)
            if graph is not None
        }
        bound = choices[stepped.next.label].tolerance(stepped.next)
        return stepped_parity_rows(stepped, graphs, lambda _: bound, point, device)


def runtime_name(choice: TorchChoice, device: Device) -> str:
    """Return the name of a run of the model in parity rows."""
    return (
        f"PyTorch {device.value.upper()}, the placed files by the served program ({choice.options.summary})"
    )
