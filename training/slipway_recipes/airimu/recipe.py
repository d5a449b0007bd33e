"""Recipe of the AirIMU checkpoint: CodeNet, trained on simulated sensors and motions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.airimu.conf import CONF_FILE, read_conf
from slipway_export.families.airimu.family import FAMILY, facts_of
from slipway_export.families.airimu.local import by_torch
from slipway_export.families.airimu.network import CodeNet, build
from slipway_export.families.airimu.presets import write_weights
from slipway_recipes.airimu.initial_weights import start_from_rest
from slipway_recipes.airimu.measures import figures
from slipway_recipes.airimu.simulation import Batch, drawn_batch
from slipway_recipes.card import Card
from slipway_recipes.fitting import Schedule, fit
from slipway_recipes.recipe import Making, Recipe
from slipway_serving.families.airimu.facts import Facts

CONF = """\
dataset: { collate: padding9 }
train: { network: codenet, gtrot: True, propcov: True }
"""
SCHEDULE = Schedule(steps=450, learning_rate=1e-4, warmup=50, weight_decay=1e-4, ema=0.98)
# Steps use recordings of these lengths in turn, and each step has the same number of frames.
_LENGTHS_S, _BATCH_S = (4.0, 8.0, 16.0), 96.0
# Floors of the error size by which the loss is normalized; smaller errors do not matter.
_ACC_FLOOR_M_S2, _GYRO_FLOOR_RAD_S = 0.02, 0.0005
# Number and length (in seconds) of the recordings that calibrate the variances at the end.
_CALIBRATED = (256, 60.0)
_DRIFT_WEIGHT, _VARIANCE_WEIGHT = 0.5, 0.1


@dataclass(frozen=True)
class _Trainer:
    """Loss of a training step, on a newly drawn batch.

    Args:
        facts: Facts of the network.
        seed: Seed of the batches.
    """

    facts: Facts
    seed: int

    def loss(self, network: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng([self.seed, step])
        seconds = _LENGTHS_S[step % len(_LENGTHS_S)]
        batch = drawn_batch(random, self.facts, round(_BATCH_S / seconds), seconds)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm1d):
                # A sensor at rest must look the same whatever else moves in the batch.
                module.eval()
        device = next(network.parameters()).device
        drawn = {name: torch.from_numpy(array).to(device) for name, array in vars(batch).items()}
        outputs = dict(zip(self.facts.outputs, network(drawn["acc"], drawn["gyro"]), strict=True))
        return sum(
            _loss(
                outputs[f"correction_{sensor}"],
                outputs[f"{sensor}_cov"],
                drawn[f"{sensor}_error"],
                drawn[f"{sensor}_noise"],
                floor,
            )
            for sensor, floor in (("acc", _ACC_FLOOR_M_S2), ("gyro", _GYRO_FLOOR_RAD_S))
        )  # type: ignore[return-value]


def _loss(correction: Tensor, variance: Tensor, error: Tensor, noise: Tensor, floor: float) -> Tensor:
    """Return the loss of corrections [batch, frames, 3] and of their variances.

    The remaining error counts as a share of the original error: frame by frame, and accumulated from the
    first frame, as velocity and rotation accumulate it. The variances are those of the remaining error and
    the noise together.
    """
    left = correction + error
    size = error.square().mean(dim=(1, 2), keepdim=True).sqrt().clamp_min(floor)
    frames = torch.arange(1, error.shape[1] + 1, device=error.device)[:, None]
    now = functional.huber_loss(left / size, torch.zeros_like(left))
    drift = left.cumsum(dim=1) / (size * frames.clamp_min(error.shape[1] // 2))
    summed = functional.huber_loss(drift, torch.zeros_like(drift), delta=0.5)
    found = (left + noise).square()
    likelihood = ((found / variance + variance.log()) / 2 - math.log(floor)).mean()
    return now + _DRIFT_WEIGHT * summed + _VARIANCE_WEIGHT * likelihood


def _calibrate(network: CodeNet, batch: Batch, outputs: Sequence[str]) -> None:
    """Scale the variances of each axis to the mean squared errors in a batch."""
    drawn = {name: torch.from_numpy(array) for name, array in vars(batch).items()}
    heads = {"acc": network.acccov_decoder, "gyro": network.gyrocov_decoder}
    with torch.no_grad():
        found = dict(zip(outputs, network(drawn["acc"], drawn["gyro"]), strict=True))
        for sensor, head in heads.items():
            off = found[f"correction_{sensor}"] + drawn[f"{sensor}_error"] + drawn[f"{sensor}_noise"]
            normalized = (off.square() / found[f"{sensor}_cov"]).mean(dim=(0, 1))
            *_, last = head
            last.get_parameter("bias").add_(normalized.log())


def make(making: Making) -> None:
    """Train the network, and write its configuration and its weights in half precision."""
    making.output.mkdir(parents=True, exist_ok=True)
    (making.output / CONF_FILE).write_text(CONF, encoding="utf-8")
    checkpoint = Checkpoint(making.output, making.output.name)
    torch.manual_seed(making.seed)
    network = build(read_conf(making.output, checkpoint.source))
    assert isinstance(network, CodeNet)
    start_from_rest(network)
    facts = facts_of(checkpoint, FAMILY.axes)
    trainer = _Trainer(facts, making.seed)
    trained = fit(network, trainer.loss, SCHEDULE, making, "codenet")
    assert isinstance(trained, CodeNet)
    random = np.random.default_rng([making.seed, SCHEDULE.steps])
    _calibrate(trained, drawn_batch(random, facts, *_CALIBRATED), facts.outputs)
    state = {
        key: value.half() if value.is_floating_point() else value
        for key, value in trained.state_dict().items()
    }
    write_weights(making.output, state)


CARD = Card(
    title="AirIMU CodeNet, trained on simulated sensors",
    is_of=(
        "CodeNet in AirIMU's layout (`codenet.conf`, `ckpt/best_model.ckpt`; weights in half precision),"
        " which corrects the signals of an inertial sensor at 200 Hz and tells the variance of each."
    ),
    data=(
        "Simulated: bodies that rest, then move as hands, walkers and robots do, some resting again now and"
        " then; every one with a sensor of its own, with a bias of 0.03 to 0.4 m/s² and 0.001 to 0.02 rad/s,"
        " noise, errors of scale and of the axes' directions (to 0.5 % and 0.3°) and a bias that wanders."
        " No recording of anyone."
    ),
    training=(
        "From weights that take a bias from the rest (a calibration by hand, which alone brings the errors to"
        " about a fifth), AdamW on what is left of each sensor's error, as a share of it, frame by frame and"
        " summed up; the variances by likelihood, and at the end to the mean over recordings of a minute. Ten"
        " minutes on 2 CPU cores."
    ),
    results={
        "ate_share": "ATE corrected ÷ raw, mean over 120 recordings of 60 s, each corrected as a whole",
        "aoe_share": "AOE corrected ÷ raw",
        "rte_share": "RTE corrected ÷ raw, segments of 200 frames",
        "roe_share": "ROE corrected ÷ raw",
        "raw_ate_m": "ATE raw, m",
        "corrected_ate_m": "ATE corrected, m",
        "raw_aoe_deg": "AOE raw, degrees",
        "corrected_aoe_deg": "AOE corrected, degrees",
        "recordings_halved": "share of the recordings whose ATE is at most half",
        "acc_normalized_error": "squared error ÷ variance, acceleration; 1 is calibrated",
        "gyro_normalized_error": "squared error ÷ variance, rate of rotation",
    },
    limits=(
        "It learns a sensor's bias while the sensor rests: a recording must begin with a second of rest, and"
        " be corrected as a whole or as a stream, not in short windows. It knows 200 Hz only, and sensors as"
        " bad as those above; it has never seen a real one."
    ),
)

RECIPE = Recipe(
    family="airimu",
    summary="CodeNet on simulated sensors, of many qualities, on bodies that rest and move",
    hours=0.15,
    make=make,
    measure=lambda folder: figures(by_torch(str(folder))),
    card=CARD,
)
