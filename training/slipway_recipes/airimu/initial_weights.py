"""Initial weights of CodeNet's training: a hand-made calibration that training then improves.

A sensor's error is a hundredth of the signal of its body's motion, and from random weights an hour of
training learns nothing of it. So twelve channels and seven memory units compute what a person would: the bias
of the rate of rotation is its mean during the rest, and the bias of the acceleration is the difference of the
first frames from the rest in the lead-in. All other weights are random, and small in the last layers.

    acc  ─▶ averages ─▶ differences from 8 frames earlier ─▶ stored at the first feature, then kept
    gyro ─▶ averages ─▶ averages ─▶ stored at the first feature, then averaged while little moves
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from slipway_export.families.airimu.network import CodeNet

# The convolutions map 0.1 m/s² and 0.02 rad/s to 1; the memory units store a small multiple of that.
_ACC_GAIN, _GYRO_GAIN = 10.0, 50.0
_ACC_HELD, _GYRO_HELD = 0.12, 0.3
# Units of the first memory: the first one of each sensor's three axes, and one that is 1 after the lead-in's
# feature, else -1.
_ACC, _GYRO, _FIRST = 0, 3, 6
# Channel that has this value at the lead-in's feature, which has padding as neighbours, and 0 elsewhere.
_LEAD_CHANNEL, _LEAD = 12, 10.0
# Logits of keeping the stored value, always and at rest, and the amounts by which motion raises the second.
_KEPT, _RESTING, _ACC_MOTION, _GYRO_MOTION = 10.0, 3.0, 0.5, 1.0
_HEAD_GAIN = 4.0
# Log variances for noise of 0.03 m/s² and 0.002 rad/s, to which the network adds its own -5.
_ACC_VARIANCE, _GYRO_VARIANCE = -2.0, -7.4
_SMALL, _ACC_SCALE, _LONGEST_MEMORY = 0.05, 0.1, 100.0


class _Gate(NamedTuple):
    """Views of the rows of a GRU gate in the weights."""

    inputs: Tensor
    memory: Tensor
    bias: Tensor


@torch.no_grad()
def start_from_rest(network: CodeNet) -> None:
    """Set a network's weights to correct by the signal at rest, and disable its dropout."""
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    _set_convolutions(*(network.cnn.net[layer] for layer in (0, 4)))
    for gru, units in ((network.gru1, 7), (network.gru2, 6)):
        keep, _ = _gates(gru)
        # Units get memories of all lengths, after Tallec and Ollivier, "Can recurrent neural networks warp
        # time?", 2018.
        keep.bias.uniform_(-1, math.log(_LONGEST_MEMORY))
        for weights in gru.parameters():
            weights.view(3, gru.hidden_size, -1)[:, :units] = 0
    _set_first_memory(network.gru1)
    keep, new = _gates(network.gru2)
    keep.bias[:6] = -_KEPT
    new.inputs[:6, :6] = torch.eye(6)
    _set_head(network.accdecoder, _ACC, _ACC_HELD * _ACC_GAIN * float(network.get_buffer("acc_std")))
    _set_head(network.gyrodecoder, _GYRO, _GYRO_HELD * _GYRO_GAIN * float(network.get_buffer("gyro_std")))
    heads = ((network.acccov_decoder, _ACC_VARIANCE), (network.gyrocov_decoder, _GYRO_VARIANCE))
    for head, logarithm in heads:
        _last(head).weight *= _SMALL
        _last(head).bias.fill_(logarithm)


def _set_convolutions(first: nn.Module, second: nn.Module) -> None:
    """Set two channels of opposite sign for each axis, since GELU(x) - GELU(-x) is x."""
    assert isinstance(first, nn.Conv1d)
    assert isinstance(second, nn.Conv1d)
    average = torch.full((7,), 1 / 7)
    compared = torch.tensor([0, -1, 0, 0, 1 / 3, 1 / 3, 1 / 3])
    # Without this factor, gravity drowns the other signals.
    first.weight[:, :3] *= _ACC_SCALE
    for layer in (first, second):
        assert layer.bias is not None
        layer.weight[: _LEAD_CHANNEL + 1] = 0
        layer.bias[: _LEAD_CHANNEL + 1] = 0
    for axis in range(6):
        kernel = _ACC_GAIN * compared if axis < _GYRO else _GYRO_GAIN * average
        for channel, sign in ((2 * axis, 1), (2 * axis + 1, -1)):
            first.weight[channel, axis] = sign * average
            second.weight[channel, 2 * axis] = sign * kernel
            second.weight[channel, 2 * axis + 1] = -sign * kernel
    # The channel is 1 for every frame, so that the three frames before are missing only at the beginning.
    first.get_parameter("bias")[_LEAD_CHANNEL] = 1.0
    second.weight[_LEAD_CHANNEL, _LEAD_CHANNEL, :3] = -_LEAD / nn.functional.gelu(torch.tensor(1.0))
    second.get_parameter("bias")[_LEAD_CHANNEL] = _LEAD


def _set_first_memory(gru: nn.GRU) -> None:
    keep, new = _gates(gru)
    for axis in range(3):
        for unit, held in ((_ACC + axis, _ACC_HELD), (_GYRO + axis, _GYRO_HELD)):
            new.inputs[unit, 2 * unit] = held
            new.inputs[unit, 2 * unit + 1] = -held
    keep.memory[_ACC:_GYRO, _FIRST] = -_KEPT
    keep.inputs[_ACC:_GYRO, 6:12] = _GYRO_MOTION
    keep.memory[_GYRO:_FIRST, _FIRST] = -_KEPT / 2
    keep.bias[_GYRO:_FIRST] = _RESTING - _KEPT / 2
    keep.inputs[_GYRO:_FIRST, :6] = _ACC_MOTION
    keep.inputs[_GYRO:_FIRST, 6:12] = _GYRO_MOTION
    new.inputs[_FIRST, _LEAD_CHANNEL] = 1.0
    new.bias[_FIRST] = -_LEAD / 2
    keep.bias[_FIRST] = -_KEPT


def _set_head(head: nn.Sequential, unit: int, held: float) -> None:
    """Make a head subtract the error that three units of the second memory store, scaled by `held`."""
    hidden, last = head[0], _last(head)
    assert isinstance(hidden, nn.Linear)
    last.weight *= _SMALL
    last.bias.zero_()
    hidden.weight[:6] = 0
    hidden.bias[:6] = 0
    for axis in range(3):
        for row, sign in ((2 * axis, 1), (2 * axis + 1, -1)):
            hidden.weight[row, unit + axis] = sign * _HEAD_GAIN
            last.weight[:, row] = 0
            last.weight[axis, row] = -sign / (_HEAD_GAIN * held)


def _gates(gru: nn.GRU) -> tuple[_Gate, _Gate]:
    """Return the gates that keep and renew a unit's value; torch's order is reset, keep, new."""
    size = gru.hidden_size
    weights = [gru.get_parameter(name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0")]
    return (
        _Gate(*(each[size : 2 * size] for each in weights)),
        _Gate(*(each[2 * size :] for each in weights)),
    )


def _last(head: nn.Sequential) -> nn.Linear:
    layer = list(head)[-1]
    assert isinstance(layer, nn.Linear)
    return layer
