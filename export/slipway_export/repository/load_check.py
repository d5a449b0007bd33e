"""Check that the models of an export can be loaded, before any of them is placed.

Each staged ``config.pbtxt`` is read as a server reads it and checked by the code of the server's backends:
first its parameters, then its tensors against those of the graph. Weights are not loaded, because the
verification already ran with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipway_serving.protocol.errors import InvalidRequest, SlipwayError, raise_all
from slipway_serving.runtime.backends.onnxruntime import session, signature
from slipway_serving.runtime.backends.onnxruntime.signature import GraphTensor, Signature
from slipway_serving.runtime.in_process import read_config
from slipway_serving.runtime.input_sizes import read_ranges
from slipway_serving.runtime.program import CheckedProgram, Settings, program_class
from slipway_serving.runtime.tensorrt.engine_file import check_engine, facts_file

_TYPES = {"FLOAT": "float", "DOUBLE": "double"}


def check_loadable(staged: Path, names: Sequence[str], repository: Path) -> None:
    """Check that a server could load every model of an export.

    Args:
        staged: Folder with the models of the export.
        names: Names of these models.
        repository: Folder where they will be placed; an ensemble may have members there already.

    Raises:
        InvalidRequest: A server would refuse a model. The message names each such model and the reason.
    """
    problems = []
    for name in names:
        try:
            _check_model(staged / name, [staged, repository])
        except SlipwayError as error:
            problems.append(str(error))
    raise_all("export", problems)


def file_signature(graph: Path) -> Signature:
    """Read the tensors of a graph from its file, without its weights.

    Args:
        graph: Path of the ``.onnx`` file.
    """
    import onnx

    loaded = onnx.load(graph, load_external_data=False).graph
    weights = {weight.name for weight in loaded.initializer}
    inputs = {value.name: _tensor(value) for value in loaded.input}
    return Signature(
        {name: tensor for name, tensor in inputs.items() if name not in weights},
        {name: tensor for name, tensor in inputs.items() if name in weights},
        {value.name: _tensor(value) for value in loaded.output},
    )


def _tensor(value: Any) -> GraphTensor:
    import onnx

    kind = value.type.tensor_type
    name = onnx.TensorProto.DataType.Name(kind.elem_type)
    shape = tuple(
        dim.dim_value if dim.WhichOneof("value") == "dim_value" else dim.dim_param for dim in kind.shape.dim
    )
    return GraphTensor(value.name, f"tensor({_TYPES.get(name, name.lower())})", shape)


def _check_model(folder: Path, repositories: Sequence[Path]) -> None:
    """Check the configuration of one model as the backend that serves it does."""
    config = read_config(folder)
    settings = Settings(folder.name, folder / "1", config)
    read_ranges(folder.name, settings.parameters)
    if "ensemble_scheduling" in config:
        _check_ensemble(config, repositories)
    elif (settings.folder / facts_file()).is_file():
        signature.check(config, check_engine(settings.folder, folder.name).signature)
    elif config.get("backend") in ("onnxruntime", "tensorrt"):
        graph = settings.folder / "model.onnx"
        if config["backend"] == "onnxruntime":
            session.session_options(config)
            session.run_options(config)
            graph = session.graph_path(config, settings.folder)
        signature.check(config, file_signature(graph))
    elif config.get("backend") == "python":
        _check_program(settings)
    else:
        raise InvalidRequest(
            f"{folder.name}: backend must be onnxruntime, tensorrt or python, got {config.get('backend')!r}"
        )


def _check_program(settings: Settings) -> None:
    """Check that the program of a model exists and can serve the model's files.

    An export may run where the packages of a server are not installed. A program that needs one of them
    cannot be imported there. That says nothing about the server, so the error is ignored.
    """
    try:
        program = program_class(settings)
    except InvalidRequest as error:
        own = settings.parameters.get("program", "").partition(".")[0]
        missing = error.__cause__.name or "" if isinstance(error.__cause__, ModuleNotFoundError) else own
        if missing.partition(".")[0] == own:
            raise
        return
    if isinstance(program, CheckedProgram):
        program.check_files(settings)


def _check_ensemble(config: Mapping[str, Any], repositories: Sequence[Path]) -> None:
    """Check, as Triton does, that an ensemble's members exist, take its batches and have its tensors."""
    problems = []
    for step in config["ensemble_scheduling"]["step"]:
        name, rows = step["model_name"], int(config["max_batch_size"])
        found = next((folder / name for folder in repositories if (folder / name).is_dir()), None)
        if found is None:
            problems.append(f"{name} must be in the repository, got no such model")
            continue
        member = read_config(found)
        if int(member["max_batch_size"]) < rows:
            problems.append(
                f"max_batch_size of {name} must be at least {rows}, got {member['max_batch_size']}"
            )
        for side, entry_map in (("input", step["input_map"]), ("output", step["output_map"])):
            known = {entry["name"] for entry in member.get(side, [])}
            problems += [
                f"{side} of {name} must be one of {', '.join(sorted(known))}, got {tensor}"
                for tensor in entry_map
                if tensor not in known
            ]
    raise_all(str(config["name"]), problems)
