"""The weights that CodeNet's training starts from: a calibration by hand, which training then improves.

A sensor's error is a hundredth of what its body's motion shows, and from random weights nothing of it is
learnt in an hour. So twelve channels and seven units of memory are set to what a person would compute: the
bias of a rate of rotation is its mean while the sensor rests, that of an acceleration by how much the first
frames differ from the rest in the lead-in. All other weights are random, and small at the end.

    acc  ─▶ averages ─▶ differences from those 8 frames ago ─▶ taken at the first feature, and kept
    gyro ─▶ averages ─▶ averages ─▶ taken at the first feature, then averaged while little moves
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from slipway_export.modeling.airimu import CodeNet

# 0.1 m/s², and 0.02 rad/s, come out of the convolutions as 1; what the units hold of that is small.
_ACC_GAIN, _GYRO_GAIN = 10.0, 50.0
_ACC_HELD, _GYRO_HELD = 0.12, 0.3
# Units of the first memory: of each sensor's axes, and one that is 1 after the lead-in's feature, else -1.
_ACC, _GYRO, _FIRST = 0, 3, 6
# The channel that is this large at the lead-in's feature, whose neighbours are padding, and 0 at all others.
_LEAD_CHANNEL, _LEAD = 12, 10.0
# Logits of keeping what is held: in any case, while all rests; and by how much any motion raises the second.
_KEPT, _RESTING, _ACC_MOTION, _GYRO_MOTION = 10.0, 3.0, 0.5, 1.0
_HEAD_GAIN = 4.0
# Logarithms of variances, beside the network's own -5: of noises of 0.03 m/s² and 0.002 rad/s.
_ACC_VARIANCE, _GYRO_VARIANCE = -2.0, -7.4
_SMALL, _ACC_SCALE, _LONGEST_MEMORY = 0.05, 0.1, 100.0


class _Gate(NamedTuple):
    """A gate of a GRU: views of its rows in the weights."""

    inputs: Tensor
    memory: Tensor
    bias: Tensor


@torch.no_grad()
def start_from_rest(network: CodeNet) -> None:
    """Set a network's weights so that it corrects by what its sensor shows at rest, and take its dropout."""
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    _set_convolutions(*(network.cnn.net[layer] for layer in (0, 4)))
    for gru, units in ((network.gru1, 7), (network.gru2, 6)):
        keep, _ = _gates(gru)
        # Memories of all lengths: Tallec and Ollivier, "Can recurrent neural networks warp time?", 2018.
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
    """Set a channel for each axis, and a twin of the other sign: GELU lets a signal through in two parts."""
    assert isinstance(first, nn.Conv1d)
    assert isinstance(second, nn.Conv1d)
    average = torch.full((7,), 1 / 7)
    compared = torch.tensor([0, -1, 0, 0, 1 / 3, 1 / 3, 1 / 3])
    # Else gravity drowns the rest.
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
    # Ones where there are frames, so that the three before are missed at the beginning only.
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
    """Have a head take off what three units of the second memory hold, which is so many times the error."""
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
    """Return the gates that keep and that renew what a unit holds, of torch's order reset, keep, new."""
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
