"""AirIMU's networks: sizes and keys of the public ones, the hold of nine frames, stretches and wholes."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.airimu.conf import GRAVITY_M_S2, Conf
from slipway_export.families.airimu.double import erf
from slipway_export.families.airimu.family import AXES, FAMILY, facts_of
from slipway_export.families.airimu.network import CodeNet, Network, Steps, Whole, build, load_network
from slipway_serving.families.airimu.facts import Facts
from slipway_serving.families.airimu.request import CorrectionRequest
from slipway_serving.protocol.errors import InvalidRequest

NETWORKS = ("codenet", "codenetkitti")


@pytest.fixture(scope="module", params=["tiny", "tiny-kitti"])
def loaded(request: pytest.FixtureRequest) -> tuple[Network, Facts]:
    with open_checkpoint(FAMILY, request.param) as checkpoint:
        return load_network(checkpoint.path, checkpoint.source), facts_of(checkpoint, AXES)


def signals(frames: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    shape = (2, frames, 3)
    up = torch.tensor([0, 0, GRAVITY_M_S2])
    return torch.randn(shape, generator=random) + up, torch.randn(shape, generator=random)


def held_by_loop(features: Tensor, frames: int) -> Tensor:
    """The hold by intervals: feature i for 9 frames, from 4 before frame 9 i on; the last one to the end."""
    out = torch.zeros(features.shape[0], frames, 3)
    for i in range(-(-(frames - 4) // 9) + 1):
        start, stop = min(max(9 * i - 4, 0), frames), min(9 * i + 5, frames)
        out[:, start:stop] += features[:, min(i, features.shape[1] - 1)][:, None]
    return out


def test_codenet_has_the_published_number_of_parameters() -> None:
    network = build(Conf())
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == 520_044


def test_state_dict_has_the_published_keys() -> None:
    keys = set(build(Conf()).state_dict())
    assert {"acc_std", "gyro_std", "cnn.net.0.weight", "cnn.net.5.running_mean"} <= keys
    assert {"gru1.weight_hh_l0", "gru2.bias_ih_l0", "accdecoder.2.weight", "gyrocov_decoder.0.bias"} <= keys
    assert {key.split(".")[0] for key in build(Conf(network="codenetkitti")).state_dict()} == {
        "accEncoder", "gyroEncoder", "accDecoder", "gyroDecoder", "accCovDecoder", "gyroCovDecoder",
        "acc_std", "gyro_std",
    }  # fmt: skip


@pytest.mark.parametrize("frames", [*range(1, 41), 500, 1000, 1009])
def test_hold_equals_the_loop_over_intervals(frames: int) -> None:
    network = build(Conf(covariance=False)).eval()
    assert isinstance(network, CodeNet)
    acc, gyro = signals(frames + 9)
    with torch.no_grad():
        encoded = network.cnn(torch.cat([acc, gyro], -1))
        features, *_ = network.recur(encoded, torch.zeros(2, 128), torch.zeros(2, 256))
        expected = held_by_loop(network.decode(features[:, 1:])[0], frames)
        actual = network(acc, gyro)[0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("covariance", [True, False])
def test_outputs_have_a_value_for_each_frame(network: str, covariance: bool) -> None:
    made = build(Conf(network=network, covariance=covariance)).eval()
    acc, gyro = signals(made.lead + 31)
    outputs = made(acc, gyro)
    assert len(outputs) == len(made.outputs) == (4 if covariance else 2)
    assert {tuple(output.shape) for output in outputs} == {(2, 31, 3)}
    if covariance:
        assert min(float(output.detach().min()) for output in outputs[2:]) > 0


@settings(max_examples=20, deadline=None)
@given(frames=st.integers(1, 90), data=st.data())
def test_stretches_of_any_lengths_give_the_whole_recordings_features(
    loaded: tuple[Network, Facts], frames: int, data: st.DataObject
) -> None:
    network, facts = loaded
    acc, gyro = signals(facts.lead + frames, seed=frames)
    steps = facts.steps_of(frames)
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, steps), max_size=5))), steps]
    states = tuple(torch.zeros(2, size) for size in facts.states.values())
    parts = []
    with torch.no_grad():
        for start, stop in pairwise(cuts):
            if start == stop:
                continue
            length = facts.hop * (stop - start) + facts.overhang
            first = facts.hop * start - facts.reach
            index = torch.arange(first, first + length)
            present = ((index >= 0) & (index < facts.lead + frames)).float().expand(2, -1)
            clamped = index.clamp(0, facts.lead + frames - 1)
            stretch = (x[:, clamped] * present[..., None] for x in (acc, gyro))
            outputs = Steps(network)(*stretch, present, *states)
            parts.append(outputs[: len(facts.outputs)])
            states = outputs[len(facts.outputs) :]
        whole = Whole(network)(acc, gyro)
    held = facts.step_of(np.arange(frames), steps)
    for part, expected in zip(zip(*parts, strict=True), whole, strict=True):
        torch.testing.assert_close(torch.cat(part, 1)[:, held], expected, rtol=0, atol=1e-6)


def test_checkpoint_with_integrator_buffers_loads(tmp_path: Path) -> None:
    FAMILY.presets["tiny"].write(tmp_path, 0)
    path = tmp_path / "ckpt/best_model.ckpt"
    content = torch.load(path, weights_only=True)
    content["model_state_dict"]["integrator.gravity"] = torch.zeros(3)
    content["best_loss"] = np.float64(0.25)  # as training scripts leave it
    torch.save(content, path)
    load_network(tmp_path, "here")


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch owned",)


def test_checkpoint_with_a_pickle_payload_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAMILY.presets["tiny"].write(tmp_path, 0)
    torch.save({"model_state_dict": Payload()}, tmp_path / "ckpt/best_model.ckpt")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match=r"best_model.ckpt must hold tensors.*calls.*system.*not run"):
        load_network(tmp_path, "here")
    assert not Path("owned").exists()


def test_checkpoint_with_wrong_weights_names_them(tmp_path: Path) -> None:
    FAMILY.presets["tiny"].write(tmp_path, 0)
    path = tmp_path / "ckpt/best_model.ckpt"
    content = torch.load(path, weights_only=True)
    state = content["model_state_dict"]
    del state["gru1.weight_hh_l0"]
    state["other"] = torch.zeros(1)
    state["acc_std"] = torch.tensor(float("nan"))
    state["gru2.bias_ih_l0"] = torch.zeros(7)
    torch.save(content, path)
    with pytest.raises(
        InvalidRequest,
        match=r"gru1.weight_hh_l0; unknown keys other; NaN.*acc_std; gru2.bias_ih_l0 of shape \[7\]",
    ):
        load_network(tmp_path, "here")
    torch.save({"epoch": 1}, path)
    with pytest.raises(
        InvalidRequest, match="model_state_dict, state_dict, model, or tensors alone, got epoch"
    ):
        load_network(tmp_path, "here")
    path.write_bytes(b"half a file")
    with pytest.raises(InvalidRequest, match="must be a file of torch.save"):
        load_network(tmp_path, "here")


CONF = """\
dataset: {{
   include "../../datasets/none.conf"
   collate: {collate} }}
train:
{{
   include "../../train/train.conf"
   lr: 1e-3, network: {network}
   propcov:{propcov}
   {more}
}}
"""


def written(folder: Path, **entries: str) -> Checkpoint:
    defaults = {"collate": "padding9", "network": "codenet", "propcov": "True", "more": ""}
    (folder / "codenet.conf").write_text(CONF.format(**defaults | entries))
    return Checkpoint(folder, "here")


def test_conf_gives_the_network_and_its_lead_in(tmp_path: Path) -> None:
    facts = facts_of(written(tmp_path, collate="Gpadding", propcov="False"), AXES)
    assert (facts.hop, facts.reach, facts.lead, facts.lead_gravity_m_s2) == (9, 12, 9, 0.0)
    assert facts.outputs == ("correction_acc", "correction_gyro")
    kitti = facts_of(written(tmp_path, network="codenetkitti", collate="base"), AXES)
    assert (kitti.hop, kitti.reach, kitti.lead, kitti.states) == (1, 5, 0, {})
    scaled = build_of(tmp_path, more="acc_std: 0.5, gyro_std: 0.25")
    assert float(scaled.acc_std) == 0.5
    assert float(scaled.gyro_std) == 0.25


def build_of(folder: Path, **entries: str) -> Network:
    from slipway_export.families.airimu.conf import read_conf

    written(folder, **entries)
    return build(read_conf(folder, "here"))


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"network": "iden"}, r"train.network must be codenet or codenetkitti, got 'iden'"),
        ({"collate": "padding"}, r"collate must be padding9 or Gpadding for codenet, got 'padding'"),
        ({"network": "codenetkitti"}, r"collate must be base for codenetkitti, got 'padding9'"),
        ({"propcov": "maybe"}, r"propcov must be True or False, got 'maybe'"),
        ({"more": "acc_std: 0, gyro_std: much"}, r"acc_std must be a number.*gyro_std must be a number"),
        ({"more": 'a: { include url("http://localhost/x") }'}, "include must be .* on a line of its own"),
        ({"more": "a: ["}, "must be HOCON"),
        ({"network": "{ a: 1 }"}, r"train\.network must be codenet or codenetkitti, got ConfigTree"),
        ({"network": "[codenet]"}, r"train\.network must be codenet or codenetkitti, got \['codenet'\]"),
        (
            {"collate": "{ a: 1 }"},
            r"dataset\.collate must be padding9 or Gpadding for codenet, got ConfigTree",
        ),
        ({"collate": "[padding9]"}, r"dataset\.collate must be padding9 or Gpadding for codenet"),
        ({"propcov": "{ a: 1 }"}, r"train\.propcov must be True or False, got ConfigTree"),
        ({"more": "gyro_std: { a: 1 }"}, r"train\.gyro_std must be a number above 0, got ConfigTree"),
    ],
)
def test_conf_of_another_kind_is_refused(tmp_path: Path, entries: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        facts_of(written(tmp_path, **entries), AXES)


@pytest.mark.parametrize("text", ["train: 5", "train: [1]", "train: codenet", "[1, 2]"])
def test_conf_is_refused_when_what_holds_an_entry_is_no_mapping(tmp_path: Path, text: str) -> None:
    (tmp_path / "codenet.conf").write_text(text)
    with pytest.raises(InvalidRequest, match=r"codenet\.conf: (train|the file) must be a mapping, got"):
        facts_of(Checkpoint(tmp_path, "here"), AXES)


def test_conf_without_a_network_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.conf").write_text("train: { network: codenet, propcov: True }")
    (tmp_path / "codenet.conf").write_text('include "secret.conf"\n')
    with pytest.raises(InvalidRequest, match="got None; includes are not followed"):
        facts_of(Checkpoint(tmp_path, "here"), AXES)


def test_lead_in_is_gravity_seen_by_the_turned_sensor(loaded: tuple[Network, Facts]) -> None:
    _, facts = loaded
    half = np.sqrt(0.5)
    turns = np.array([[0, 0, 0, 1], [half, 0, 0, half], [0, half, 0, half]], np.float32)
    lead = facts.lead_in(turns, 3)
    assert lead.shape == (3, facts.lead, 6)
    if facts.lead:
        g = facts.lead_gravity_m_s2
        np.testing.assert_allclose(lead[:, 0, :3], [[0, 0, g], [0, g, 0], [-g, 0, 0]], atol=1e-5)
        assert not lead[:, :, 3:].any()
        np.testing.assert_array_equal(facts.lead_in(None, 1), lead[:1])


def test_error_function_of_elementary_operations_is_exact() -> None:
    x = torch.linspace(-12, 12, 100_001, dtype=torch.float64)
    assert float((erf(x) - torch.erf(x)).abs().max()) < 5e-15


@pytest.mark.parametrize("value", [2000.0, -2000.0, 1e-45, -0.0])
def test_outputs_are_finite_for_the_ends_of_what_a_request_may_bring(
    loaded: tuple[Network, Facts], value: float
) -> None:
    network, facts = loaded
    given = torch.full((1, 60 + facts.lead, 3), value)
    # Frames of both signs, one after the other.
    for each in (given, given * torch.tensor([1.0, -1.0]).repeat(given.shape[1])[: given.shape[1], None]):
        with torch.no_grad():
            outputs = Whole(network)(each, each)
        assert all(torch.isfinite(output).all() for output in outputs)


@pytest.mark.parametrize("value", [2000.5, 3.4e38, -3.4e38])
def test_signal_that_no_sensor_gives_is_refused(value: float) -> None:
    fine, beyond = np.zeros((1, 20, 3), np.float32), np.full((1, 20, 3), value, np.float32)
    for name in ("acc", "gyro"):
        with pytest.raises(InvalidRequest, match=f"airimu: {name} must be within -2000 to 2000, got"):
            CorrectionRequest(**{"acc": fine, "gyro": fine, name: beyond})
