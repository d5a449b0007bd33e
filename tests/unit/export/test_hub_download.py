"""What a hub is asked for: the file list, the configurations, then only the weights that are needed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fake_hub
import pytest
from fake_hub import FakeHub
from typer.testing import CliRunner

from slipway_export.checkpoint.hub import HubDiskFull, HubFolder, download_needed, look
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export, wanted_of
from slipway_export.spec import Axis, Family, Loading, Precision
from slipway_serving.protocol.errors import InvalidRequest

WAN = family_named("wan_t2v")
WORLD = family_named("matrix_game")
WAN_ID, WORLD_ID = "Wan-AI/Wan2.2-T2V-A14B-Diffusers", "Skywork/Matrix-Game-2.0"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with an empty cache."""
    monkeypatch.chdir(tmp_path)
    with fake_hub.serving() as served:
        fake_hub.use(served, tmp_path / "cache", monkeypatch)
        yield served
        fake_hub.forget()


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Wan checkpoint as it is published, with files that no export needs. Read only."""
    folder = tmp_path_factory.mktemp("wan")
    WAN.presets["tiny"].write(folder, 0)
    weights = folder / "transformer/diffusion_pytorch_model.safetensors"
    for name in ("diffusion_pytorch_model.fp16.safetensors", "diffusion_pytorch_model.bin"):
        # Files of equal content would share a blob in the cache, and be downloaded once.
        weights.with_name(name).write_bytes(name.encode())
    (folder / "assets").mkdir()
    (folder / "assets/logo.png").write_bytes(bytes(1000))
    (folder / "google").mkdir()
    (folder / "google/spare.safetensors").write_bytes(bytes(1000))
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Matrix-Game checkpoint. Read only."""
    folder = tmp_path_factory.mktemp("world")
    WORLD.presets["tiny"].write(folder, 0)
    return folder


def asked(family: Family, source: str, *components: str, **parts: str) -> list[str]:
    """Open a checkpoint for some components, and return the lines that were reported."""
    lines: list[str] = []
    wanted = wanted_of(family, ExportOptions(source, Path(), components=components, parts=parts))
    with open_checkpoint(family, source, parts, wanted=wanted, report=lines.append):
        pass
    return lines


@pytest.mark.parametrize(
    ("component", "part"), [("image_encoder", "image_encoder/model"), ("vae_encoder", "vae/diffusion")]
)
def test_encoder_of_pictures_downloads_only_its_own_weights(
    hub: FakeHub, tmp_path: Path, component: str, part: str
) -> None:
    folder = tmp_path / "flf2v"
    folder.mkdir()
    WAN.presets["tiny-flf2v"].write(folder, 0)
    hub.repositories["Wan-AI/FLF2V"] = folder
    asked(WAN, "Wan-AI/FLF2V", component)
    (weights,) = hub.weights()
    assert weights.startswith(f"Wan-AI/FLF2V/{part}")


def test_only_needed_files_are_downloaded_when_all_components_are_exported(hub: FakeHub, wan: Path) -> None:
    hub.repositories[WAN_ID] = wan
    (line,) = asked(WAN, WAN_ID)
    assert hub.weights() == {
        f"{WAN_ID}/{path}"
        for path in (
            "text_encoder/model.safetensors",
            "transformer/diffusion_pytorch_model.safetensors",
            "transformer_2/diffusion_pytorch_model.safetensors",
            "vae/diffusion_pytorch_model.safetensors",
        )
    }
    assert f"{WAN_ID}/assets/logo.png" not in hub.files
    assert re.fullmatch(
        rf"{WAN_ID}: \S+ [kMG]?B to download in 4 files \(the repository has \S+ MB\)", line
    ), line


def test_one_part_is_downloaded_when_one_component_is_exported(hub: FakeHub, wan: Path) -> None:
    hub.repositories[WAN_ID] = wan
    asked(WAN, WAN_ID, "vae_decoder")
    assert hub.weights() == {f"{WAN_ID}/vae/diffusion_pytorch_model.safetensors"}
    asked(WAN, WAN_ID, "vae_decoder", "denoiser_low")
    assert hub.weights() == {
        f"{WAN_ID}/{part}/diffusion_pytorch_model.safetensors" for part in ("vae", "transformer_2")
    }


def test_part_of_another_repository_is_downloaded_in_place_of_the_checkpoints(
    hub: FakeHub, wan: Path, tmp_path: Path
) -> None:
    hub.repositories[WAN_ID] = wan
    hub.repositories["someone/encoder"] = wan / "text_encoder"
    hub.repositories["someone/pipeline"] = wan
    parts = {
        "text_encoder": "someone/encoder",
        "vae": "someone/pipeline",
        "transformer": f"{WAN_ID}/transformer",
    }
    lines = asked(WAN, WAN_ID, **parts)
    assert hub.weights() == {
        "someone/encoder/model.safetensors",
        "someone/pipeline/vae/diffusion_pytorch_model.safetensors",
        f"{WAN_ID}/transformer/diffusion_pytorch_model.safetensors",
        f"{WAN_ID}/transformer_2/diffusion_pytorch_model.safetensors",
    }
    assert len(lines) == 4
    with pytest.raises(InvalidRequest, match=f"part vae must be a folder in hub repository {WAN_ID}, got no"):
        asked(WAN, WAN_ID, vae=f"{WAN_ID}/no")


def test_shards_of_the_index_are_downloaded_when_weights_are_sharded(
    hub: FakeHub, wan: Path, tmp_path: Path
) -> None:
    import safetensors.torch

    folder = Path(shutil.copytree(wan, tmp_path / "sharded"))
    file = folder / "vae/diffusion_pytorch_model.safetensors"
    tensors = safetensors.torch.load_file(file)
    file.unlink()
    names = {key: f"part-{index % 3}.safetensors" for index, key in enumerate(tensors)}
    for name in set(names.values()):
        safetensors.torch.save_file(
            {k: t for k, t in tensors.items() if names[k] == name}, file.with_name(name)
        )
    index = {"metadata": {}, "weight_map": names}
    Path(f"{file}.index.json").write_text(json.dumps(index))
    hub.repositories[WAN_ID] = folder
    asked(WAN, WAN_ID, "vae_decoder")
    assert hub.weights() == {f"{WAN_ID}/vae/part-{index}.safetensors" for index in range(3)}


def test_pickled_weights_are_downloaded_only_when_there_are_no_others(
    hub: FakeHub, wan: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(wan, tmp_path / "pickled"))
    file = folder / "vae/diffusion_pytorch_model.safetensors"
    file.rename(file.with_suffix(".bin"))
    hub.repositories[WAN_ID] = folder
    asked(WAN, WAN_ID, "vae_decoder")
    assert hub.weights() == {f"{WAN_ID}/vae/diffusion_pytorch_model.bin"}


def test_wrong_id_is_refused_without_any_weights(hub: FakeHub, wan: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(wan, tmp_path / "other"))
    index = json.loads((other / "model_index.json").read_text())
    (other / "model_index.json").write_text(json.dumps({**index, "_class_name": "CogVideoXPipeline"}))
    hub.repositories["zai-org/CogVideoX-5b"] = other
    with pytest.raises(InvalidRequest, match="must be WanPipeline, WanImage.*, got 'CogVideoXPipeline'"):
        asked(WAN, "zai-org/CogVideoX-5b")
    assert "zai-org/CogVideoX-5b/model_index.json" in hub.files
    assert not hub.weights()


def test_nothing_is_downloaded_when_the_file_list_lacks_the_layout(hub: FakeHub, world: Path) -> None:
    hub.repositories[WORLD_ID] = world
    with pytest.raises(InvalidRequest) as refused:
        asked(WAN, WORLD_ID)
    assert "model_index.json" in str(refused.value)
    assert "the hub's repository has" in str(refused.value)
    assert "base_distill.safetensors" in str(refused.value)
    assert not hub.files


def test_unknown_option_is_refused_without_any_weights(hub: FakeHub, wan: Path) -> None:
    hub.repositories[WAN_ID] = wan
    options = ExportOptions(WAN_ID, Path(), axes=(Axis("depth", 1, 2, 3),))
    wanted = wanted_of(WAN, options)
    with (
        pytest.raises(InvalidRequest, match="axis must be one of"),
        open_checkpoint(WAN, WAN_ID, wanted=wanted),
    ):
        pass
    assert not hub.weights()


def test_plan_downloads_configurations_only(hub: FakeHub, wan: Path, tmp_path: Path) -> None:
    from slipway_export.commands.export_commands import export

    hub.repositories[WAN_ID] = wan
    run = CliRunner().invoke(export, ["wan_t2v", "--checkpoint", WAN_ID, "--plan"])
    assert run.exit_code == 0, run.output
    assert not hub.weights()
    assert f"{WAN_ID}/text_encoder/config.json" in hub.files
    assert "to download in 4 files" in run.output
    run = CliRunner().invoke(export, ["wan_t2v", "--checkpoint", WAN_ID, "--plan", "--variant-file", "fp8"])
    assert run.exit_code != 0
    assert "variant-file must be the variant of a part's weights, got fp8" in str(run.exception)


def test_published_world_is_complete_when_configs_are_not_beside_the_weights(
    hub: FakeHub, tmp_path: Path
) -> None:
    """The public repository has weights alone; they are empty here, so only the plan is compared."""
    folder = tmp_path / "published"
    folder.mkdir()
    write = WORLD.presets["public"].write_empty
    assert write is not None
    write(folder)
    shutil.rmtree(folder / "configs")
    hub.repositories[WORLD_ID] = folder
    lines: list[str] = []
    with open_checkpoint(WORLD, WORLD_ID, configurations_only=True, report=lines.append) as checkpoint:
        found = {
            each.label
            for each in wanted_of(WORLD, ExportOptions(WORLD_ID, Path())).plan(checkpoint).components
        }
    assert "universal_denoiser" in found
    assert not hub.weights()
    assert "inference_universal.yaml" in lines[0]
    assert "Slipway's own" in lines[0]
    # The VAE and the CLIP have no configuration, so a plan cannot include them, but an export reads them.
    assert re.search(r"to download in 3 files", lines[1])


def test_world_is_read_when_its_hub_repository_has_configs(hub: FakeHub, world: Path) -> None:
    hub.repositories[WORLD_ID] = world
    asked(WORLD, WORLD_ID, "universal_denoiser")
    assert hub.weights() == {f"{WORLD_ID}/base_distilled_model/base_distill.safetensors"}
    hub.bytes.clear()
    asked(WORLD, WORLD_ID)
    assert hub.weights() == {
        f"{WORLD_ID}/Wan2.1_VAE.pth",
        f"{WORLD_ID}/models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth",
    }


def test_network_is_loaded_when_its_weights_come_from_the_hub(hub: FakeHub, wan: Path) -> None:
    hub.repositories[WAN_ID] = wan
    wanted = wanted_of(WAN, ExportOptions(WAN_ID, Path(), components=("vae_decoder",)))
    with open_checkpoint(WAN, WAN_ID, wanted=wanted) as checkpoint:
        assert checkpoint.commit == fake_hub.COMMIT
        decoder = next(c for c in wanted.plan(checkpoint).components if c.name == "vae_decoder")
        loaded = decoder.load(Precision.FP32, Loading.READ)
    with open_checkpoint(WAN, str(wan)) as checkpoint:
        decoder = next(c for c in wanted.plan(checkpoint).components if c.name == "vae_decoder")
        expected = decoder.load(Precision.FP32, Loading.READ)
    for key, tensor in expected.state_dict().items():
        assert (loaded.state_dict()[key] == tensor).all()


def test_download_continues_with_the_files_that_are_missing(hub: FakeHub, wan: Path) -> None:
    hub.repositories[WAN_ID] = wan
    asked(WAN, WAN_ID, "vae_decoder")
    hub.bytes.clear()
    (line,) = asked(WAN, WAN_ID)
    assert "to download in 3 files" in line
    assert "are in the cache" in line
    assert f"{WAN_ID}/vae/diffusion_pytorch_model.safetensors" not in hub.files
    hub.bytes.clear()
    (line,) = asked(WAN, WAN_ID)
    assert "0 bytes to download in 0 files" in line
    assert not hub.bytes


def test_file_is_complete_when_its_connection_broke(hub: FakeHub, wan: Path) -> None:
    name = f"{WAN_ID}/vae/diffusion_pytorch_model.safetensors"
    hub.repositories[WAN_ID] = wan
    hub.cut[name] = 50_000
    asked(WAN, WAN_ID, "vae_decoder")
    # The library keeps whole pieces of 10 MB of a file, and this one is smaller.
    assert hub.bytes[name] == 50_000 + (wan / "vae/diffusion_pytorch_model.safetensors").stat().st_size


def test_download_goes_on_where_the_connection_broke(hub: FakeHub, tmp_path: Path) -> None:
    """The library keeps whole pieces of 10 MB of a file."""
    (tmp_path / "large").mkdir()
    size, cut, piece = 32_000_000, 25_000_000, 10 * 2**20
    (tmp_path / "large/model.safetensors").write_bytes(bytes(size))
    hub.repositories["some/large"] = tmp_path / "large"
    hub.cut["some/large/model.safetensors"] = cut
    folder = HubFolder(look("some/large", "checkpoint"))
    download_needed([(folder, ["model.safetensors"])], None)
    assert (folder.path / "model.safetensors").stat().st_size == size
    assert size <= hub.bytes["some/large/model.safetensors"] <= size + piece < size + cut


def test_download_is_refused_when_the_disk_is_too_small(
    hub: FakeHub, wan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories[WAN_ID] = wan
    full = shutil.disk_usage(wan)._replace(free=1000)
    monkeypatch.setattr("slipway_export.checkpoint.hub.shutil.disk_usage", lambda _: full)
    with pytest.raises(HubDiskFull, match=r"must have \S+ MB free for the checkpoint, got 1000 bytes"):
        asked(WAN, WAN_ID)
    assert not hub.weights()


def test_cache_is_read_when_the_hub_must_not_be_asked(
    hub: FakeHub, wan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub.repositories[WAN_ID] = wan
    asked(WAN, WAN_ID, "vae_decoder")
    hub.bytes.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    fake_hub.forget()
    asked(WAN, WAN_ID, "vae_decoder")
    asked(WAN, WAN_ID, "vae_decoder", vae=f"{WAN_ID}/vae")
    with pytest.raises(InvalidRequest, match="HF_HUB_OFFLINE is set, so only the cache was read; try"):
        asked(WAN, WAN_ID, "denoiser_low")
    with pytest.raises(InvalidRequest, match="got 'some/other'.*HF_HUB_OFFLINE is set"):
        asked(WAN, "some/other")
    assert not hub.bytes


def test_plan_needs_no_weights_in_the_cache_when_the_hub_must_not_be_asked(
    hub: FakeHub, wan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub.repositories[WAN_ID] = wan
    lines: list[str] = []
    for offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        fake_hub.forget()
        with open_checkpoint(WAN, WAN_ID, configurations_only=True, report=lines.append) as checkpoint:
            assert wanted_of(WAN, ExportOptions(WAN_ID, Path())).plan(checkpoint).components
    assert len(lines) == 1
    assert not hub.weights()


def test_cache_is_read_when_the_hub_is_not_reached(
    hub: FakeHub, wan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub.repositories[WAN_ID] = wan
    asked(WAN, WAN_ID, "vae_decoder")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    asked(WAN, WAN_ID, "vae_decoder")
    with pytest.raises(InvalidRequest, match="checkpoint must be a preset, an existing folder, or a"):
        asked(WAN, "some/other")


def test_unknown_id_is_refused_with_what_helps(hub: FakeHub) -> None:
    with pytest.raises(InvalidRequest, match="got 'some/typo'.*check the spelling"):
        asked(WAN, "some/typo")


def test_mirror_is_asked_when_hf_endpoint_names_one(hub: FakeHub, wan: Path, tmp_path: Path) -> None:
    hub.repositories[WAN_ID] = wan
    code = (
        "from slipway_export.checkpoint.opening import open_checkpoint\n"
        "from slipway_export.families import family_named\n"
        f"with open_checkpoint(family_named('wan_t2v'), {WAN_ID!r}, configurations_only=True) as opened:\n"
        "    print(opened.folder)\n"
    )
    environment = {
        **{key: value for key, value in os.environ.items() if "proxy" not in key.lower()},
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_CACHE": str(tmp_path / "mirrored"),
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "mirrored") in done.stdout
    assert f"{WAN_ID}/vae/config.json" in hub.files


def test_export_of_one_component_downloads_its_files_alone(hub: FakeHub, wan: Path, tmp_path: Path) -> None:
    import safetensors.torch

    folder = Path(shutil.copytree(wan, tmp_path / "variants"))
    state = safetensors.torch.load_file(folder / "vae/diffusion_pytorch_model.safetensors")
    halves = {key: tensor.half() for key, tensor in state.items()}
    safetensors.torch.save_file(halves, folder / "vae/diffusion_pytorch_model.fp16.safetensors")
    hub.repositories[WAN_ID] = folder
    lines: list[str] = []
    options = ExportOptions(WAN_ID, tmp_path / "models", components=("vae_decoder",), variant_file="fp16")
    result = run_export(WAN, options, lines.append)
    assert result.placed
    assert any("to download in 1 file" in line for line in lines)
    assert "part vae is read as variant fp16" in lines
    assert hub.weights() == {f"{WAN_ID}/vae/diffusion_pytorch_model.fp16.safetensors"}
    facts = json.loads((tmp_path / "models/wan_t2v_vae_decoder/manifest.json").read_text())["checkpoint"]
    assert (facts["variant_file"], facts["layouts"]["vae"]) == ("fp16", "variant fp16")
