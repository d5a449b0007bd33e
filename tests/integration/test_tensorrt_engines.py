"""Engines of TensorRT-RTX, made by its real builder: what is placed, checked, refused and built anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tiny_exports import exported_once
from typer.testing import CliRunner

from slipway_cli.root import app
from slipway_export.engines.tensorrt.build import BuildFailed
from slipway_export.engines.tensorrt.choice import EngineChoice, chosen_engine
from slipway_export.engines.tensorrt.placed import placed_engines, rebuild
from slipway_export.engines.tensorrt.plan import Profiles
from slipway_export.engines.tensorrt.requested import EngineRequest
from slipway_export.graph.dialect import TENSORRT_LACKS
from slipway_export.repository.publish import MANIFEST, find_modification, hashes
from slipway_export.spec import Engine, Precision
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError
from slipway_serving.runtime.in_process import InProcessModels, read_config
from slipway_serving.runtime.program import Call, Settings, load_program
from slipway_serving.runtime.tensorrt.engine_file import check_engine, facts_file, read_header
from slipway_serving.runtime.tensorrt.library import Library, load
from slipway_serving.system.gpu import compute_capabilities, target_of
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        Library.RTX.installed_version is None, reason="TensorRT-RTX is not installed: extra tensorrt-rtx"
    ),
]
GPUS = compute_capabilities()
DENOISER = "wan_t2v_denoiser_high"
"""A model of its own; it has four attentions."""


@pytest.fixture(scope="module")
def exported(shared: Path) -> Path:
    """A repository with the engine of Wan's denoiser in fp16. Read only."""
    return exported_once(
        shared,
        "wan_t2v",
        "tiny",
        engine=Engine.TENSORRT_RTX,
        precision=Precision.FP16,
        components=("denoiser_high",),
        tensorrt=EngineRequest(("sm89",)),
    )[0]


@pytest.fixture
def repository(exported: Path, tmp_path: Path) -> Path:
    """A copy of the repository."""
    return Path(shutil.copytree(exported, tmp_path / "models"))


def test_export_places_the_engine_of_the_verified_graph(exported: Path) -> None:
    folder = exported / DENOISER / "1"
    facts = check_engine(folder, DENOISER)
    header = read_header(folder / "model.engine")
    assert (header.library, header.version) == (Library.RTX, facts.version)
    assert header.engine_bytes == facts.engine_bytes == (folder / "model.engine").stat().st_size
    assert facts.targets == ("sm89",)
    assert list(facts.profiles) == ["flexible"]
    manifest = json.loads((exported / DENOISER / MANIFEST).read_text())
    # The file that was verified is the one that was built: nothing was added to it in between.
    assert manifest["files"]["1/model.onnx"] == facts.graph
    assert manifest["engines"]["model"]["targets"] == ["sm89"]
    assert all("ONNX Runtime" in row["verified_on"] for row in manifest["parity"])
    assert find_modification(exported / DENOISER) is None


def test_half_precision_attention_becomes_fused_kernels(exported: Path) -> None:
    assert check_engine(exported / DENOISER / "1", DENOISER).built["fused_attention"] == 4


def test_model_refuses_to_load_in_one_line_on_a_machine_without_such_a_gpu(exported: Path) -> None:
    folder = exported / DENOISER
    with pytest.raises(InvalidRequest) as error:
        load_program(Settings(DENOISER, folder / "1", read_config(folder), "CPU"))
    assert str(error.value) == (
        f"{DENOISER}: a TensorRT-RTX engine for sm89 must run on such a GPU, got a machine without one; try"
        " --engine onnxruntime"
    )


def test_triton_does_not_load_the_model_and_says_why(exported: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(SlipwayError, match="a TensorRT-RTX engine for sm89 must run on such a GPU"),
        Server(ServerConfig(exported, log_path=tmp_path / "log", http_port=0, grpc_port=0, metrics_port=0)),
    ):
        pass


def test_engine_that_was_cut_off_is_refused_and_listed_as_damaged(repository: Path) -> None:
    path = repository / DENOISER / "1" / "model.engine"
    path.write_bytes(path.read_bytes()[:-100])
    (engine,) = placed_engines(repository)
    assert engine.facts is None
    assert "size must be" in engine.problem
    result = CliRunner().invoke(app, ["engines", "list", str(repository)])
    assert result.exit_code == 1
    assert "damaged" in result.output


def test_engine_of_another_version_is_refused_by_name(repository: Path) -> None:
    path = repository / DENOISER / "1" / "model.engine"
    content = bytearray(path.read_bytes())
    content[24:28] = bytes((1, 6, 0, 9))
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"version must be .* got 1\.6\.0\.9"):
        check_engine(path.parent, DENOISER)


def test_rebuild_replaces_the_engine_for_another_target(repository: Path) -> None:
    def choose(library: Library) -> EngineChoice:
        return chosen_engine(library, request=EngineRequest(("sm80", "sm120")))

    path = repository / DENOISER / "1" / facts_file()
    facts = json.loads(path.read_text()) | {"options": {"builder_level": 4, "weight_streaming": True}}
    path.write_text(json.dumps(facts))
    before = hashes(repository / DENOISER)
    assert rebuild(repository, choose) == [DENOISER]
    folder = repository / DENOISER
    built = check_engine(folder / "1", DENOISER)
    assert built.targets == ("sm80", "sm120")
    assert built.options == {"builder_level": 4, "weight_streaming": True}
    assert find_modification(folder) is None
    changed = {name for name, digest in hashes(folder).items() if before.get(name) != digest}
    assert changed == {"1/model.engine", f"1/{facts_file()}"}


def test_rebuild_changes_nothing_when_a_graph_does_not_build(repository: Path) -> None:
    def choose(library: Library) -> EngineChoice:
        return chosen_engine(library, request=EngineRequest(("sm89",)))

    other = repository / "other"
    shutil.copytree(repository / DENOISER, other)
    graph = onnx.load(other / "1" / "model.onnx")
    graph.graph.node.append(helper.make_node("NoSuchOperator", ["timestep"], ["nothing"]))
    onnx.save(graph, other / "1" / "model.onnx")
    (other / MANIFEST).unlink()  # A changed graph is refused earlier; here the parser must refuse it.
    before = hashes(repository)
    with pytest.raises(BuildFailed, match="NoSuchOperator"):
        rebuild(repository, choose)
    assert hashes(repository) == before


def test_graph_that_was_changed_after_its_verification_is_not_built(repository: Path) -> None:
    path = repository / DENOISER / "1" / "model.onnx"
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(InvalidRequest, match="the graph must be as it was verified"):
        rebuild(repository, lambda library: chosen_engine(library, request=EngineRequest(("sm89",))))


def test_list_of_operators_is_that_of_the_parser() -> None:
    trt = load(Library.RTX)
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    schemas = onnx.defs.get_all_schemas_with_history()
    standard = {schema.name for schema in schemas if not schema.domain and not schema.deprecated}
    assert {name for name in standard if not parser.supports_operator(name)} == TENSORRT_LACKS


def test_authored_model_refuses_to_load_in_one_line_too(shared: Path) -> None:
    repository, _ = exported_once(
        shared,
        "airimu",
        "tiny",
        engine=Engine.TENSORRT_RTX,
        components=("stream",),
        tensorrt=EngineRequest(("sm89", "sm120"), Profiles.LATENCY),
    )
    folder = repository / "airimu_stream"
    facts = check_engine(folder / "1", "airimu_stream", "step")
    assert (facts.targets, list(facts.profiles)) == (("sm89", "sm120"), ["opt", "flexible"])
    with pytest.raises(InvalidRequest) as error:
        load_program(Settings("airimu_stream", folder / "1", read_config(folder), "CPU"))
    said = "airimu_stream/step: a TensorRT-RTX engine for sm89, sm120 must run on such a GPU"
    assert str(error.value).startswith(said)


@pytest.mark.gpu
@pytest.mark.skipif(
    not GPUS or target_of(GPUS[0]) not in Library.RTX.targets, reason="no GPU that TensorRT-RTX runs on"
)
@pytest.mark.parametrize("profiles", list(Profiles))
def test_engine_answers_as_its_graph_does(shared: Path, profiles: Profiles) -> None:
    repository, _ = exported_once(
        shared,
        "wan_t2v",
        "tiny",
        engine=Engine.TENSORRT_RTX,
        precision=Precision.FP16,
        components=("denoiser_high",),
        tensorrt=EngineRequest(profiles=profiles),
    )
    folder = repository / DENOISER
    program = load_program(Settings(DENOISER, folder / "1", read_config(folder), "GPU"))
    session = onnxruntime.InferenceSession(folder / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    try:
        for frames in (5, 9):  # The first is the size of profile opt.
            random = np.random.default_rng(frames)
            inputs = {
                "hidden_states": random.standard_normal((2, 16, frames, 8, 8), np.float32),
                "timestep": np.full((2, 1), 500, np.float32),
                "encoder_hidden_states": random.standard_normal((2, 512, 32), np.float32),
            }
            (answer,) = program.run(Call(inputs, InProcessModels(repository)))
            (expected,) = session.run(None, inputs | {"timestep": inputs["timestep"][:, 0]})
            difference = np.linalg.norm(answer["sample"] - expected) / np.linalg.norm(expected)
            assert difference < 0.01
    finally:
        program.close()
    assert (folder / "1" / "runtime_cache" / "model.cache").is_file()


def attention(path: Path, dtype: int, head: int) -> Path:
    """Write an ONNX file that is not Slipway's: one attention with dynamic sizes."""
    shape: list[int | str] = ["batch", 2, "tokens", head]
    tensors = [helper.make_tensor_value_info(name, dtype, shape) for name in ("q", "k", "v", "y")]
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    graph = helper.make_graph([node], "g", tensors[:3], tensors[3:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), path)
    return path


AXES = ["--axis", "batch=1:1:2", "--axis", "tokens=1:16:64"]


def test_check_of_a_foreign_file_reports_what_the_builder_made(tmp_path: Path) -> None:
    graph = attention(tmp_path / "half.onnx", TensorProto.FLOAT16, 64)
    result = CliRunner().invoke(app, ["engines", "check", str(graph), *AXES, "--target", "sm89", "--json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["graphs"]
    assert (found["parsed"], found["built"], found["differences"]) == (True, True, [])
    assert (found["attention"], found["fused_attention"]) == (1, 1)
    assert found["inputs"]["q"] == ["HALF", [-1, 2, -1, 64]]
    assert list(found["memory"]) == ["flexible"]


def test_check_names_the_node_and_the_cure_when_a_graph_does_not_build(tmp_path: Path) -> None:
    graph = attention(tmp_path / "full.onnx", TensorProto.FLOAT, 64)
    result = CliRunner().invoke(app, ["engines", "check", str(graph), *AXES, "--target", "sm89"])
    assert result.exit_code == 1
    assert "opset 22" in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "constants", "cure"),
    [
        ("TopK", {"x": [1, 5000]}, [1, 4000], {"k": np.array([4000])}, "a K of at most 3840"),
        (
            "DequantizeLinear",
            {"x": [1, 8]},
            [1, 8],
            {"scale": np.array(0.1, np.float32), "zero": np.array(3, np.int8)},
            "symmetric quantization",
        ),
        ("DFT", {"x": [1, 16, 1]}, [1, 16, 2], {"": None, "axis": np.array(1)}, "cosines and sines"),
        ("Unique", {"x": [16]}, ["n"], {}, "does not support this operator"),
    ],
)
def test_check_gives_the_cure_of_what_the_library_refuses(
    tmp_path: Path,
    operator: str,
    inputs: dict[str, list[int]],
    output: list[int | str],
    constants: dict[str, np.ndarray | None],
    cure: str,
) -> None:
    node = helper.make_node(operator, [*inputs, *constants], ["y", *(["i"] if operator == "TopK" else [])])
    dtype = TensorProto.INT8 if operator == "DequantizeLinear" else TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items() if value is not None],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10), path)
    result = CliRunner().invoke(app, ["engines", "check", str(path), "--target", "sm89", "--json"])
    assert result.exit_code == 1
    (found,) = json.loads(result.stdout)["graphs"]
    assert any(cure in f"{error['message']} {error['cure']}" for error in found["errors"]), found["errors"]


def test_check_asks_for_ranges_of_dynamic_dimensions(tmp_path: Path) -> None:
    graph = attention(tmp_path / "half.onnx", TensorProto.FLOAT16, 64)
    result = CliRunner().invoke(app, ["engines", "check", str(graph), "--axis", "batch=1:1:2"])
    assert isinstance(result.exception, InvalidRequest)
    assert "got none for tokens; try --axis tokens=MIN:OPT:MAX" in str(result.exception)


def test_file_that_is_not_onnx_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "not.onnx"
    path.write_bytes(np.random.default_rng(0).bytes(1000))
    result = CliRunner().invoke(app, ["engines", "check", str(path)])
    assert isinstance(result.exception, InvalidRequest)
    assert "must be an ONNX file" in str(result.exception)


def test_engine_of_a_file_keeps_the_earlier_one_when_the_build_fails(tmp_path: Path) -> None:
    graph = attention(tmp_path / "net.onnx", TensorProto.FLOAT16, 64)
    arguments = ["engines", "build", str(graph), *AXES, "--target", "sm89"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    before = hashes(tmp_path)
    assert set(before) == {"net.onnx", "net.engine", "net.engine.json"}
    attention(graph, TensorProto.FLOAT, 64)
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, BuildFailed)
    after = hashes(tmp_path)
    assert {name: after[name] for name in ("net.engine", "net.engine.json")} == {
        name: before[name] for name in ("net.engine", "net.engine.json")
    }
    assert set(after) == set(before)
