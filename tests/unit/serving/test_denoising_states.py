"""States of a denoising loop: schedules that go on where they were, states set aside, who made them."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from hypothesis import given
from hypothesis import strategies as st

from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.schedules import DiffusersSchedule, FewStep
from slipway_serving.diffusion.videos.set_aside import SetAsideState
from slipway_serving.diffusion.videos.states import check_origin, read_origin
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.protocol.snapshots.denoising_states import DenoisingState, Origin, read_state

FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
SCHEDULERS: dict[str, Any] = {
    "euler": lambda: FlowMatchEulerDiscreteScheduler(shift=3.0),
    **{
        f"unipc {order}": lambda order=order: UniPCMultistepScheduler(solver_order=order, **FLOW)
        for order in (1, 2, 3)
    },
}
STEPS = 7
SHAPE = (1, 4, 2, 3, 3)
ORIGIN = Origin("weights", "files", {"denoiser": "onnxruntime fp32"})


def schedule(name: str) -> DiffusersSchedule:
    return DiffusersSchedule(SCHEDULERS[name](), STEPS, "test", Noise(0))


def step(plan: Any, number: int, latents: torch.Tensor) -> torch.Tensor:
    timestep = plan.timesteps[number]
    stepped: torch.Tensor = plan.step(torch.tanh(latents) + float(timestep) / 1000, timestep, latents)
    return stepped


def state_of(**kept: Any) -> DenoisingState:
    return DenoisingState("wan_t2v", ORIGIN, {"seed": 1}, "step", 1, 2, kept)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("stop", range(1, STEPS + 1))
def test_schedule_goes_on_to_the_bit_from_its_state(name: str, stop: int) -> None:
    whole, latents = schedule(name), torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    found = [latents]
    for number in range(STEPS):
        found.append(step(whole, number, found[-1]))
    first, again = schedule(name), schedule(name)
    for number in range(stop):
        latents = step(first, number, latents)
    stored = read_state(state_of(schedule=first.state()).to_bytes(), "test").kept["schedule"]
    again.restore(stored, stop, latents)
    for number in range(stop, STEPS):
        latents = step(again, number, latents)
        assert torch.equal(latents, found[number + 1])


@pytest.mark.parametrize("name", SCHEDULERS)
def test_clean_latents_are_those_that_the_flow_leads_to(name: str) -> None:
    plan, generator = schedule(name), torch.Generator().manual_seed(1)
    clean, noise = torch.randn((2, *SHAPE), generator=generator)
    latents = noise
    for number, timestep in enumerate(plan.timesteps):
        torch.testing.assert_close(
            plan.clean(noise - clean, number, _at(plan, number, clean, noise)), clean, atol=1e-4, rtol=1e-4
        )
        latents = plan.step(noise - clean, timestep, latents)


def _at(plan: DiffusersSchedule, number: int, clean: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    sigma = plan._scheduler.sigmas[number]
    mixed: torch.Tensor = (1 - sigma) * clean + sigma * noise
    return mixed


def test_few_step_schedule_has_no_state_of_its_own() -> None:
    plan = FewStep((1000, 500), 3.0, Noise(0))
    assert plan.state() == {}
    plan.restore({}, 1, torch.zeros(SHAPE))
    with pytest.raises(ValueError, match="must have no state, got x"):
        plan.restore({"x": 1}, 1, torch.zeros(SHAPE))
    torch.testing.assert_close(plan.clean(torch.ones(SHAPE), 0, torch.ones(SHAPE)), torch.zeros(SHAPE))


def test_schedule_cannot_be_stopped_when_an_attribute_is_no_value() -> None:
    plan = schedule("euler")
    plan._scheduler.odd = object()
    with pytest.raises(Unrecoverable, match="FlowMatchEulerDiscreteScheduler.odd must be a number"):
        plan.state()


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e5, 1e5) | st.text(max_size=8)
    | st.sampled_from([np.zeros((2, 0), np.float32), np.array(7, np.int64), np.arange(6.0).reshape(2, 3)]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def same(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray):
        return bool(
            isinstance(second, np.ndarray)
            and (first.dtype, first.shape) == (second.dtype, second.shape)
            and np.array_equal(first, second)
        )
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return type(first) is type(second) and bool(first == second)


@given(tree=st.dictionaries(st.text(max_size=5), TREES, max_size=4), part_bytes=st.integers(1, 100))
def test_state_is_the_same_when_it_was_written_and_read(tree: dict[str, Any], part_bytes: int) -> None:
    parts = list(state_of(**{"kept": tree}).parts(part_bytes))
    assert same(read_state(b"".join(parts), "test").kept["kept"], tree)


def test_array_is_written_once_when_it_occurs_twice() -> None:
    array = np.zeros((100, 100), np.float32)
    once, twice = state_of(a=array).to_bytes(), state_of(a=array, b=array).to_bytes()
    assert len(twice) - len(once) < 100


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_state_that_is_set_aside_is_on_disk_only_when_it_is_large(tmp_path: Path, memory_bytes: int) -> None:
    folder = tmp_path / "aside"
    held = SetAsideState(state_of(latents=np.ones(SHAPE, np.float32)), folder, memory_bytes)
    files = [*folder.glob("*")] if folder.exists() else []
    assert len(files) == (1 if memory_bytes == 0 else 0)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert all(stat.S_IMODE(file.parent.stat().st_mode) == 0o700 for file in files)
    taken = held.take("test")
    assert np.array_equal(taken.kept["latents"], np.ones(SHAPE))
    assert not folder.exists() or [*folder.iterdir()] == []


def test_nothing_is_left_when_a_state_has_no_room_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fdopen", full)
    with pytest.raises(OSError, match="No space left"):
        SetAsideState(state_of(latents=np.ones(SHAPE, np.float32)), tmp_path, 0)
    assert [*tmp_path.iterdir()] == []


def manifest(folder: Path, model: str, **facts: Any) -> None:
    (folder / model).mkdir(parents=True, exist_ok=True)
    content = {"family": "f", "files": {"1/model.onnx": "digest", "config.pbtxt": "any"}, **facts}
    (folder / model / "manifest.json").write_text(json.dumps(content))


def test_origin_has_the_models_of_the_family_with_their_engines(tmp_path: Path) -> None:
    made = {"denoiser/model": {"read": {"t/w.safetensors": "1", "t/config.json": "2"}}}
    manifest(tmp_path, "video", files={"1/pipeline.json": "p"})
    manifest(tmp_path, "denoiser", engine="torch", precision={"model": "bf16"}, made=made)
    manifest(tmp_path, "stranger", family="other", engine="torch", precision={"model": "fp32"})
    origin = read_origin(tmp_path / "video")
    assert origin is not None
    assert origin.engines == {"denoiser": "torch bf16"}
    before = origin
    manifest(tmp_path, "denoiser", engine="onnxruntime", precision={"model": "bf16"}, made=made)
    other = read_origin(tmp_path / "video")
    assert other is not None
    assert (other.checkpoint, other.engines) == (before.checkpoint, {"denoiser": "onnxruntime bf16"})
    made["denoiser/model"]["read"]["t/w.safetensors"] = "3"
    manifest(tmp_path, "denoiser", engine="onnxruntime", precision={"model": "bf16"}, made=made)
    third = read_origin(tmp_path / "video")
    assert third is not None
    assert third.checkpoint != other.checkpoint


@pytest.mark.parametrize("text", [None, "[]", "{", '{"family": 1}'])
def test_origin_is_unknown_when_there_is_no_manifest_of_an_export(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "video").mkdir()
    if text is not None:
        (tmp_path / "video" / "manifest.json").write_text(text)
    assert read_origin(tmp_path / "video") is None


def test_state_fits_the_same_models_and_another_engine_of_the_same_weights() -> None:
    state = state_of()
    assert check_origin(state, ORIGIN, "test")
    assert not check_origin(state, Origin("weights", "other", {"denoiser": "torch fp32"}), "test")


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        (Origin("others", "files", ORIGIN.engines), "of this server's checkpoint"),
        (Origin("weights", "others", ORIGIN.engines), "of this server's export"),
        (Origin("weights", "x", {"denoiser": "torch bf16"}), "made with the precision of denoiser, bf16"),
    ],
)
def test_state_is_refused_when_other_models_are_served(origin: Origin, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_origin(state_of(), origin, "test")
