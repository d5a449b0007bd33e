"""The `slipway export` command on checkpoints, good and bad."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from hashlib import sha256
from io import StringIO
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from google.protobuf import text_format
from safetensors.torch import load_file, save_file
from tritonclient.grpc import model_config_pb2

from slipway_cli import root
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.repository.config import model_config
from slipway_export.repository.publish import hashes
from slipway_export.run import ExportResult, run_export
from slipway_export.spec import Component, Engine, Loading, Plan, Precision, Tolerance
from slipway_export.verification.comparison import ParityFailed
from slipway_serving.protocol.export_facts import ExportFacts

FAMILY = family_named("wan_t2v")
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


def slipway(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command line in this process, which has imported PyTorch already."""
    line = [*map(str, arguments)]
    with redirect_stdout(StringIO()) as stdout, redirect_stderr(StringIO()) as stderr:
        code = root.run(line)
    return subprocess.CompletedProcess(line, code, stdout.getvalue(), stderr.getvalue())


def export_text_encoder(
    checkpoint: Path, repository: Path, *more: object
) -> subprocess.CompletedProcess[str]:
    return slipway(
        "export", "wan_t2v", "--checkpoint", checkpoint, "--repository", repository,
        "--component", "text_encoder", *more,
    )  # fmt: skip


@pytest.fixture
def damaged(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint that a test may break."""
    return Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))


def test_every_graph_is_within_bounds_at_four_points(exported: tuple[Path, ExportResult]) -> None:
    _, result = exported
    graphs = {row.graph for row in result.rows}
    assert graphs == {
        "text_encoder",
        "denoiser_high",
        "denoiser_low",
        "vae_decoder/first",
        "vae_decoder/next",
    }
    for graph in graphs:
        points = {row.point.split(" ")[0] for row in result.rows if row.graph == graph}
        assert {"min", "opt", "max", "unseen"} <= points
    assert [row for row in result.rows if row.failures] == []


def test_manifest_states_files_versions_axes_and_parity(exported: tuple[Path, ExportResult]) -> None:
    repository, result = exported
    for name in result.models:
        model = repository / name
        manifest = json.loads((model / "manifest.json").read_text())
        assert manifest["files"] == hashes(model)
        assert manifest["versions"]["torch"].startswith("2.13.0")
    manifest = json.loads((repository / "wan_t2v_denoiser_high" / "manifest.json").read_text())
    assert manifest["axes"]["latent_frames"] == [1, 5, 9]
    assert (manifest["engine"], manifest["precision"]) == ("onnxruntime", {"model": "fp32"})
    assert {row["output"] for row in manifest["parity"]} == {"sample"}
    assert (
        manifest["opset"]
        == onnx.load(repository / "wan_t2v_denoiser_high/1/model.onnx").opset_import[0].version
    )


def test_decoders_weights_lie_on_disk_once_when_both_its_graphs_have_them(repository: Path) -> None:
    version = repository / "wan_t2v_vae_decoder" / "1"
    places: dict[str, set[tuple[str, ...]]] = {}
    for name in ("first.onnx", "next.onnx"):
        weights = onnx.load(version / name, load_external_data=False).graph.initializer
        entries = [{entry.key: entry.value for entry in weight.external_data} for weight in weights]
        places[name] = {(e["location"], e["offset"], e["length"]) for e in entries if e}
        inline = [weight for weight, e in zip(weights, entries, strict=True) if not e]
        assert all(len(weight.raw_data) < 4096 for weight in inline)
    assert len(places["first.onnx"] & places["next.onnx"]) > 20
    digests = []
    for location, offset, length in places["first.onnx"] | places["next.onnx"]:
        begin = int(offset)
        content = (version / location).read_bytes()[begin : begin + int(length)]
        digests.append((location, sha256(content).hexdigest()))
    of_first = {digest for location, digest in digests if location == "first.onnx.data"}
    assert not of_first & {digest for location, digest in digests if location == "next.onnx.data"}


def test_config_is_made_from_the_component(repository: Path, checkpoint: Path) -> None:
    with open_checkpoint(FAMILY, str(checkpoint)) as opened:
        plan = FAMILY.plan(opened, FAMILY.presets["tiny"].axes)
    for component in plan.components:
        if component.graph == "model":
            name = f"wan_t2v_{component.name}"
            written = text_format.Parse(
                (repository / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
            )
            expected = model_config(component, name, Engine.ONNXRUNTIME)
            # The export adds what it found out: its engine, precision and parity.
            told = ExportFacts.read({key: value.string_value for key, value in written.parameters.items()})
            assert (told.engine, told.precision) == ("onnxruntime", "fp32") and told.parity is not None
            for key in told.parameters:
                del written.parameters[key]
            assert written == expected


def test_full_decode_of_any_length_equals_diffusers(repository: Path, checkpoint: Path) -> None:
    """Also at 13 latent frames, beyond the axis of the denoiser: the decoder has no frame axis."""
    from diffusers import AutoencoderKLWan

    from slipway_export.families.wan_t2v.network import decode
    from slipway_serving.runtime.in_process import InProcessModels
    from slipway_serving.video.frames import to_uint8

    vae = AutoencoderKLWan.from_pretrained(checkpoint / "vae").eval()
    models = InProcessModels(repository, threads=2)
    for frames, height, width in ((1, 6, 10), (2, 4, 4), (13, 10, 6)):
        latents = torch.randn(1, 16, frames, height, width, generator=torch.Generator().manual_seed(frames))
        with torch.no_grad():
            expected = to_uint8(decode(vae, latents).numpy())
        parts = models.stream("wan_t2v_vae_decoder", {"latents": latents.numpy()}, ["frames"])
        actual = np.concatenate([part["frames"] for part in parts])
        assert actual.shape == (4 * (frames - 1) + 1, 8 * height, 8 * width, 3) == expected.shape
        # Rounding may differ by one step where a float lies on the edge.
        assert np.abs(actual.astype(int) - expected.astype(int)).max() <= 1


def _remove_vae(checkpoint: Path) -> str:
    (checkpoint / "vae/diffusion_pytorch_model.safetensors").unlink()
    return "vae must contain diffusion_pytorch_model.safetensors"


def _remove_config(checkpoint: Path) -> str:
    (checkpoint / "scheduler/scheduler_config.json").unlink()
    return "scheduler/scheduler_config.json must exist"


def _truncate(checkpoint: Path) -> str:
    path = checkpoint / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])
    return f"{WEIGHTS} must be a complete safetensors file"


def _rename_key(checkpoint: Path) -> str:
    path = checkpoint / WEIGHTS
    tensors = load_file(path)
    tensors["proj_outt.bias"] = tensors.pop("proj_out.bias")
    save_file(tensors, path)
    return "missing keys proj_out.bias; unknown keys proj_outt.bias"


def _reshape_key(checkpoint: Path) -> str:
    path = checkpoint / WEIGHTS
    save_file(load_file(path) | {"proj_out.bias": torch.zeros(3)}, path)
    return "proj_out.bias must have shape [64], got [3]"


def _lose_shard(checkpoint: Path) -> str:
    (checkpoint / WEIGHTS).unlink()
    index = {"weight_map": {"proj_out.bias": "diffusion_pytorch_model-00002-of-00002.safetensors"}}
    (checkpoint / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    return "transformer/diffusion_pytorch_model-00002-of-00002.safetensors is missing"


def _other_pipeline(checkpoint: Path) -> str:
    (checkpoint / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    return "_class_name must be WanPipeline, WanImageToVideoPipeline or WanDMDPipeline, got 'FluxPipeline'"


def _no_boundary(checkpoint: Path) -> str:
    path = checkpoint / "model_index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"boundary_ratio": None}))
    return "boundary_ratio must be between 0 and 1 with transformer_2, got None"


def _broken_json(checkpoint: Path) -> str:
    (checkpoint / "transformer_2/config.json").write_text("{")
    return "transformer_2/config.json must be JSON"


def _few_embeddings(checkpoint: Path) -> str:
    path = checkpoint / "text_encoder/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 100}))
    return f"{checkpoint}: tokenizer must have token ids below 100, which is vocab_size of text_encoder/"


def _heun(checkpoint: Path) -> str:
    path = checkpoint / "scheduler/scheduler_config.json"
    path.write_text(json.dumps({"_class_name": "FlowMatchHeunDiscreteScheduler"}))
    return (
        f"{checkpoint}: scheduler/scheduler_config.json: _class_name must be a scheduler that solves a flow"
    )


@pytest.mark.parametrize(
    ("damage", "component"),
    [
        (_remove_vae, "vae_decoder"),
        (_remove_config, "text_encoder"),
        (_truncate, "denoiser_high"),
        (_rename_key, "denoiser_high"),
        (_reshape_key, "denoiser_high"),
        (_lose_shard, "denoiser_high"),
        (_other_pipeline, "text_encoder"),
        (_no_boundary, "text_encoder"),
        (_broken_json, "text_encoder"),
        (_heun, "text_encoder"),
        (_few_embeddings, "denoiser_high"),
    ],
)
def test_export_names_what_is_wrong_when_the_checkpoint_is_damaged(
    damaged: Path, tmp_path: Path, damage: Callable[[Path], str], component: str
) -> None:
    message = damage(damaged)
    repository = tmp_path / "repository"
    done = slipway(
        "export", "wan_t2v", "--checkpoint", damaged, "--repository", repository, "--component", component
    )
    assert done.returncode != 0
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not repository.exists() or list(repository.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--precision", "fp8"], "fp8"),
        (["--engine", "openvino"], "openvino"),
        (["--component", "unet"], "component must be one of text_encoder, denoiser_high"),
        (["--opset-version", "9"], "opset-version must be 17 to 23 for fp32, got 9"),
        (["--precision", "bf16", "--opset-version", "20"], "must be 22 to 23 for bf16, got 20"),
        (["--axis", "latent_frames=3:2:1"], "min <= opt <= max"),
        (["--axis", "depth=1:2:3"], "axis must be one of"),
        (["--axis", "latent_frames=big"], "axis must be NAME=MIN:OPT:MAX"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_export_refuses_unknown_values(
    checkpoint: Path, tmp_path: Path, flags: list[str], message: str
) -> None:
    done = slipway("export", "wan_t2v", "--checkpoint", checkpoint, "--repository", tmp_path / "r", *flags)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "r").exists()


def test_export_refuses_checkpoint_that_is_nothing(tmp_path: Path) -> None:
    done = slipway("export", "wan_t2v", "--checkpoint", "no-such-thing", "--repository", tmp_path / "r")
    assert done.returncode == 2
    assert (
        "checkpoint must be a preset (tiny, tiny-ti2v, tiny-fastwan, tiny-i2v, tiny-i2v-clip, tiny-flf2v,"
        " demo, small, 1.3b, a14b, a14b-2-layers, ti2v-5b, i2v-a14b), a folder, or a hub id,"
        " got 'no-such-thing'" in done.stderr
    )


def test_export_refuses_repository_that_cannot_be_written(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = export_text_encoder(checkpoint, tmp_path / "file" / "repository")
    assert done.returncode == 2
    assert "repository must be a folder that can be written" in " ".join(done.stderr.split())


@pytest.mark.long
def test_export_keeps_foreign_model_unless_forced(checkpoint: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "wan_t2v_text_encoder"
    theirs.mkdir()
    (theirs / "config.pbtxt").write_text("theirs")
    done = export_text_encoder(checkpoint, tmp_path)
    assert done.returncode == 2
    assert "wan_t2v_text_encoder must be unchanged since an export placed it" in " ".join(done.stderr.split())
    assert (theirs / "config.pbtxt").read_text() == "theirs"
    assert export_text_encoder(checkpoint, tmp_path, "--force", "--quiet").returncode == 0
    assert (theirs / "1" / "model.onnx").exists()


@pytest.mark.long
def test_export_from_yaml_sharded_and_simplified(damaged: Path, tmp_path: Path) -> None:
    """A sharded checkpoint, options from a file, and the simplifier; parity holds after it."""
    from diffusers import WanTransformer3DModel

    transformer = WanTransformer3DModel.from_pretrained(damaged / "transformer")
    shutil.rmtree(damaged / "transformer")
    transformer.save_pretrained(damaged / "transformer", max_shard_size="200KB")
    assert len(list((damaged / "transformer").glob("*.safetensors"))) > 1
    config = tmp_path / "export.yaml"
    config.write_text(
        f"checkpoint: {damaged}\nrepository: {tmp_path / 'r'}\ncomponent: [denoiser_high]\n"
        "simplify: true\nopset_version: 21\naxis: ['latent_frames=1:3:4']\n"
    )
    done = slipway("export", "wan_t2v", "--config", config)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "r/wan_t2v_denoiser_high/manifest.json").read_text())
    assert (manifest["opset"], manifest["simplified"], manifest["axes"]["latent_frames"]) == (
        21,
        True,
        [1, 3, 4],
    )
    assert "Parity with PyTorch" in done.stdout


@pytest.mark.long
def test_export_check_only_places_nothing(checkpoint: Path, tmp_path: Path) -> None:
    done = export_text_encoder(checkpoint, tmp_path / "r", "--check-only")
    assert done.returncode == 0, done.stderr
    assert "not placed" in done.stdout
    assert list((tmp_path / "r").iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_export_in_half_precision_is_close_to_fp32(
    checkpoint: Path, tmp_path: Path, precision: Precision
) -> None:
    options = ExportOptions(
        checkpoint=str(checkpoint), repository=tmp_path, precision=precision, components=("denoiser_high",)
    )
    result = run_export(FAMILY, options)
    assert all(1e-6 < row.relative_l2 < row.bound.relative_l2 for row in result.rows)
    model = onnx.load(tmp_path / "wan_t2v_denoiser_high/1/model.onnx")
    kind = onnx.TensorProto.FLOAT16 if precision is Precision.FP16 else onnx.TensorProto.BFLOAT16
    assert sum(weight.data_type == kind for weight in model.graph.initializer) > 10
    assert [tensor.type.tensor_type.elem_type for tensor in model.graph.output] == [onnx.TensorProto.FLOAT]
    if precision is Precision.BF16:
        assert all("widened to float32" in row.verified_on for row in result.rows)


@pytest.mark.long
@pytest.mark.parametrize("simplify", [False, True])
def test_large_weights_lie_in_one_file_beside_the_graph(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simplify: bool
) -> None:
    """The limit is lowered so that a small graph passes it; verification loads what was written."""
    monkeypatch.setattr("slipway_export.graph.onnx.EXTERNAL_DATA_BYTES", 1000)
    options = ExportOptions(
        checkpoint=str(checkpoint), repository=tmp_path, components=("denoiser_high",), simplify=simplify
    )
    run_export(FAMILY, options)
    version = tmp_path / "wan_t2v_denoiser_high" / "1"
    assert sorted(path.name for path in version.iterdir()) == ["model.onnx", "model.onnx.data"]
    weights = onnx.load(version / "model.onnx", load_external_data=False).graph.initializer
    assert {
        entry.value for weight in weights for entry in weight.external_data if entry.key == "location"
    } == {"model.onnx.data"}
    manifest = json.loads((version.parent / "manifest.json").read_text())
    assert {"1/model.onnx", "1/model.onnx.data", "config.pbtxt"} == manifest["files"].keys()


def test_export_places_nothing_when_parity_is_broken(checkpoint: Path, tmp_path: Path) -> None:
    """The graph is of a network whose last bias is off by 0.1."""

    def broken_plan(*arguments: object) -> Plan:
        plan = FAMILY.plan(*arguments)  # type: ignore[arg-type]
        return replace(plan, components=tuple(_break(component) for component in plan.components))

    def _break(component: Component) -> Component:
        def load(precision: Precision, loading: Loading) -> torch.nn.Module:
            module = component.load(Precision.FP32, loading)
            # The graph's network is asked for in half precision, the reference in float32.
            if precision is Precision.FP32:
                last: torch.nn.Module = module.transformer.proj_out  # type: ignore[union-attr, assignment]
                last.register_forward_hook(lambda _, __, output: output + 0.1)
            return module

        bound = {
            Precision.FP32: Tolerance(1e-3, 1e-4, 0.99999),
            Precision.FP16: Tolerance(1e-3, 1e-4, 0.99999),
        }
        return replace(component, load=load, tolerance=bound)

    family = replace(FAMILY, plan=broken_plan)
    options = ExportOptions(
        checkpoint=str(checkpoint),
        repository=tmp_path / "r",
        precision=Precision.FP16,
        components=("denoiser_high",),
    )
    with pytest.raises(ParityFailed) as failure:
        run_export(family, options)
    for point in ("min", "opt", "max", "unseen"):
        assert f"denoiser_high: sample at {point}" in str(failure.value)
    assert list((tmp_path / "r").iterdir()) == []


@pytest.mark.long
def test_killed_export_leaves_no_model(checkpoint: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "slipway_cli.root", "export", "wan_t2v", "--checkpoint", str(checkpoint),
        "--repository", str(tmp_path / "r"), "--component", "text_encoder",
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "exporting" in line:
            break
    process.kill()
    process.wait()
    assert list((tmp_path / "r").iterdir()) == []
    assert export_text_encoder(checkpoint, tmp_path / "r", "--quiet").returncode == 0
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["wan_t2v_text_encoder"]
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
