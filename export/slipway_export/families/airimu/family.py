"""AirIMU: a network that corrects the signals of an inertial sensor, in whole recordings or in streams.

A checkpoint is an experiment's `.conf` and its `ckpt/best_model.ckpt`. The conf names the network. The
network determines how its features are spaced in time, and all served models follow from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.demo import demo_preset
from slipway_export.families.airimu.conf import CONF_FILE, WEIGHTS_FILE
from slipway_export.spec import (
    AuthoredModel,
    Axis,
    Component,
    DType,
    Family,
    Loading,
    NamedFile,
    Plan,
    Precision,
    Preset,
    StepInput,
    Stepped,
    TensorSpec,
    Tolerance,
)
from slipway_serving.families.airimu.facts import FACTS_FILE, Facts
from slipway_serving.families.airimu.request import CorrectionRequest, CorrectionStreamRequest
from slipway_serving.protocol.requests import Request

if TYPE_CHECKING:
    from torch import Tensor, nn

    from slipway_export.families.airimu.network import Network

NAME = "airimu"
AXES = (
    Axis("batch", 1, 2, 8),
    # One recording of 10 minutes at 200 Hz.
    Axis("frames", 1, 1000, 120_000),
    Axis("steps", 1, 12, 1024),
)
# Corrections are hundredths of m/s² and of rad/s. A trained network resolves a thousandth of a rad/s next to
# values of one rad/s, so it amplifies the rounding of float32: an error of 3 in 10,000 of a small correction
# was measured. Graphs in float64 are compared with PyTorch in float32 too, so there the rounding is
# PyTorch's.
TOLERANCE = dict.fromkeys(
    (Precision.FP32, Precision.FP64), Tolerance(max_abs=1e-5, relative_l2=2e-3, cosine=0.99999)
)
# Longest time that a request waits to be batched with others: a third of a sample at 200 Hz.
MERGE_US = 1500


def plan(checkpoint: Checkpoint, axes: Sequence[Axis]) -> Plan:
    """Describe the models that an AirIMU checkpoint becomes.

    Raises:
        InvalidRequest: The conf names no known network.
    """
    by_name = {axis.name: axis for axis in axes}
    facts = facts_of(checkpoint, axes)
    files = {f"1/{FACTS_FILE}": facts.to_json()}
    step = _step(checkpoint, facts, by_name)
    requests: tuple[type[Request], ...] = (CorrectionRequest, CorrectionStreamRequest)
    authored = tuple(AuthoredModel(each.model, files, request=each) for each in requests)
    return Plan((_codenet(checkpoint, facts, by_name), step), authored, (_stream(checkpoint, facts, step),))


def facts_of(checkpoint: Checkpoint, axes: Sequence[Axis]) -> Facts:
    """Return the facts about a checkpoint's network that the served models need.

    Raises:
        InvalidRequest: The conf names no known network.
    """
    from slipway_export.families.airimu.conf import read_conf
    from slipway_export.families.airimu.network import NETWORKS, build

    conf = read_conf(checkpoint.path, checkpoint.source)
    network = NETWORKS[conf.network]
    largest = {axis.name: axis.max for axis in axes}
    return Facts(
        model=f"{NAME}_codenet",
        hop=network.hop,
        reach=network.reach,
        lead=network.lead,
        lead_gravity_m_s2=conf.lead_gravity_m_s2,
        outputs=build(conf).outputs,
        states=dict(network.states),
        max_batch=largest["batch"],
        max_frames=largest["frames"],
        max_steps=largest["steps"],
    )


def _codenet(checkpoint: Checkpoint, facts: Facts, axes: dict[str, Axis]) -> Component:
    """Describe the graph that maps whole recordings to a correction of each frame."""
    input_frames = f"frames + {facts.lead}" if facts.lead else "frames"
    return Component(
        name="codenet",
        inputs=tuple(_tensor(name, input_frames, 3) for name in ("acc", "gyro")),
        outputs=tuple(_tensor(name, "frames", 3) for name in facts.outputs),
        axes=(axes["batch"], axes["frames"]),
        load=partial(_load, checkpoint, "Whole"),
        lower=_lower,
        tolerance=TOLERANCE,
        merge_us=MERGE_US,
        # The served model splits larger batches.
        rows=(1, 1),
    )


def _step(checkpoint: Checkpoint, facts: Facts, axes: dict[str, Axis]) -> Component:
    """Describe the graph that maps a chunk of a stream and its states to the corrections of its features."""
    hops = "steps" if facts.hop == 1 else f"{facts.hop} * steps"
    input_frames = f"{hops} + {facts.overhang}"
    states = tuple(replace(_tensor(name, size), initial=0.0) for name, size in facts.states.items())
    after = tuple(_tensor(f"next_{name}", size) for name, size in facts.states.items())
    return Component(
        name="stream",
        graph="step",
        inputs=(
            _tensor("acc", input_frames, 3),
            _tensor("gyro", input_frames, 3),
            replace(_tensor("present", input_frames), ones=True),
            *states,
        ),
        outputs=(*(_tensor(name, "steps", 3) for name in facts.outputs), *after),
        axes=(axes["batch"], axes["steps"]),
        load=partial(_load, checkpoint, "Steps"),
        lower=_lower,
        tolerance=TOLERANCE,
        rows=(1, 1),
    )


def _stream(checkpoint: Checkpoint, facts: Facts, step: Component) -> Stepped:
    """Describe a stream: overlapping chunks, and the states that pass from one chunk to the next."""

    def reference(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        network = _load(checkpoint, "Steps", Precision.FP32, Loading.READ).to(inputs["acc"].device)
        batch = len(inputs["acc"])
        states = (inputs["acc"].new_zeros(batch, size) for size in facts.states.values())
        outputs = network(*(inputs[name] for name in ("acc", "gyro", "present")), *states)
        return dict(zip(facts.outputs, outputs, strict=False))

    cut = StepInput(axis=1, overlap=facts.overhang)
    return Stepped(
        step,
        {"acc": cut, "gyro": cut, "present": cut},
        dict.fromkeys(facts.outputs, 1),
        steps=4,
        reference=reference,
    )


def _tensor(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name, DType.FLOAT32, ("batch", *shape))


def _load(checkpoint: Checkpoint, view: str, precision: Precision, _loading: Loading) -> nn.Module:
    from slipway_export.families.airimu.network import Steps, Whole, load_network

    network: Network = load_network(checkpoint.path, checkpoint.source)
    if precision is Precision.FP64:
        network = network.double()
    module: nn.Module = {"Whole": Whole, "Steps": Steps}[view](network)
    return module


def _lower(module: nn.Module) -> AbstractContextManager[None]:
    from slipway_export.families.airimu.double import double_operators

    return double_operators(module)


def _preset(summary: str, conf: str) -> Preset:
    def write(folder: Path, seed: int) -> None:
        from slipway_export.families.airimu.presets import write_checkpoint

        write_checkpoint(folder, conf, seed)

    return Preset(summary, {}, AXES, write)


TINY = _preset(
    "random weights, real size, CodeNet with covariances; for the demo and the tests",
    """\
dataset: { collate: padding9 }
train: { network: codenet, gtrot: True, propcov: True }
""",
)
TINY_KITTI = _preset(
    "random weights, real size, CodeNetKITTI; for the tests",
    """\
train: { network: codenetkitti, gtrot: True, propcov: True }
""",
)
DEMO = demo_preset(NAME, "trained on simulated sensors; for recordings that begin at rest, 200 Hz", AXES)

FAMILY = Family(
    name=NAME,
    upstream="haleqiu/AirIMU",
    summary="corrected signals of an inertial sensor, with covariances, whole or streamed",
    served=(NAME, f"{NAME}_stream"),
    layout=(CONF_FILE, WEIGHTS_FILE),
    files={"conf": NamedFile(CONF_FILE), "ckpt": NamedFile(WEIGHTS_FILE)},
    axes=AXES,
    presets={"tiny": TINY, "tiny-kitti": TINY_KITTI, "demo": DEMO},
    plan=plan,
    requests=(CorrectionRequest,),
)
