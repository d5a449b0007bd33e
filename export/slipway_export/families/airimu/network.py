"""AirIMU's networks: CodeNet and CodeNetKITTI, with the key names of the public checkpoints.

Convolutions (and two GRUs in CodeNet) turn acceleration and rate of rotation into one feature per `hop`
frames; small heads turn each feature into corrections and variances. A network is traced twice: as a whole,
from a recording to a correction for every frame, and stepwise, from a chunk of frames and the recurrent
states before it to the corrections of its features and the states after it.
:mod:`slipway_serving.families.airimu.facts` defines which frame uses which feature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipway_export.checkpoint.torch_file import load_weights, read_torch_file, state_in
from slipway_export.families.airimu.conf import WEIGHTS_FILE, Conf, read_conf

CORRECTIONS = ("correction_acc", "correction_gyro")
COVARIANCES = ("acc_cov", "gyro_cov")


class CnnEncoder(nn.Module):
    """Encoder of convolutions over time, each with BatchNorm and an exact GELU.

    Args:
        channels: Numbers of channels of the input and of each layer.
        kernels: Kernel size of each layer; odd, and padded by half.
        stride: Stride of every layer.
    """

    def __init__(self, channels: Sequence[int], kernels: Sequence[int], stride: int = 1) -> None:
        super().__init__()
        self.strides = [(kernel // 2, stride) for kernel in kernels]
        layers: list[nn.Module] = []
        for i, kernel in enumerate(kernels):
            layers += [
                nn.Conv1d(channels[i], channels[i + 1], kernel, stride, padding=kernel // 2),
                nn.BatchNorm1d(channels[i + 1]),
                nn.GELU(),
                nn.Dropout(0.1),
            ]
        self.net = nn.Sequential(*layers)

    def forward(self, signal: Tensor) -> Tensor:
        """Encode whole recordings from [batch, frames, channels] to [batch, features, channels]."""
        encoded: Tensor = self.net(signal.transpose(1, 2)).transpose(1, 2)
        return encoded

    def within(self, signal: Tensor, present: Tensor) -> Tensor:
        """Encode a chunk of a recording, without the padding that a whole recording gets.

        Args:
            signal: Chunk with the surrounding frames on which the features depend, [batch, frames, channels].
            present: Mask of the recording's frames, [batch, frames]: 1 for a frame of the recording, 0 before
                its first and after its last. A layer's output at an absent frame is 0, as with padding.
        """
        x = signal.transpose(1, 2)
        for i, (padding, stride) in enumerate(self.strides):
            convolution = self.net[4 * i]
            assert isinstance(convolution, nn.Conv1d)
            x = functional.conv1d(x, convolution.weight, convolution.bias, stride)
            present = present[:, padding : present.shape[1] - padding : stride]
            x = self.net[4 * i + 1 : 4 * i + 4](x) * present[:, None]
        return x.transpose(1, 2)


class Gru(nn.GRU):
    """GRU of one layer over [batch, steps, size], which is exported as one ONNX operator.

    torch's exporter unrolls torch's own call step by step, which fixes the number of steps.
    """

    def forward(self, signal: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Run from a state [1, batch, hidden]; return all outputs and the final state."""
        if not torch.onnx.is_in_onnx_export():
            outputs, after = super().forward(signal, state)
            return outputs, after
        *weights, bias_ih, bias_hh = (_zrn(weight) for weight in self.all_weights[0])
        bias = torch.cat([bias_ih, bias_hh])[None]
        by_step = signal.transpose(0, 1)
        (steps, batch), hidden = by_step.shape[:2], self.hidden_size
        # linear_before_reset: torch adds the recurrent bias of the candidate before the reset gate applies.
        outputs, after = torch.onnx.ops.symbolic_multi_out(
            "GRU",
            (by_step, *(weight[None] for weight in weights), bias, None, state),
            {"hidden_size": hidden, "linear_before_reset": 1},
            dtypes=(signal.dtype, signal.dtype),
            shapes=((steps, 1, batch, hidden), (1, batch, hidden)),
        )
        return outputs[:, 0].transpose(0, 1), after


def _zrn(gates: Tensor) -> Tensor:
    """Reorder the gates from torch's order (reset, update, new) to ONNX's (update, reset, new)."""
    reset, update, new = gates.chunk(3)
    return torch.cat([update, reset, new])


class CodeNet(nn.Module):
    """Network of AirIMU for the EuRoC, TUM-VI and SubT recordings.

    Its recordings begin with `lead` frames of sensors at rest, for which it returns no correction.

    Args:
        conf: Settings of the network: the scale of the corrections, and the choice of variances as outputs.
    """

    hop: ClassVar[int] = 9
    reach: ClassVar[int] = 12
    lead: ClassVar[int] = 9
    states: ClassVar[dict[str, int]] = {"gru1_state": 128, "gru2_state": 256}

    def __init__(self, conf: Conf) -> None:
        super().__init__()
        self.outputs = CORRECTIONS + COVARIANCES * conf.covariance
        self.register_buffer("acc_std", torch.tensor(conf.acc_std))
        self.register_buffer("gyro_std", torch.tensor(conf.gyro_std))
        self.cnn = CnnEncoder((6, 32, 64), (7, 7), stride=3)
        self.gru1 = Gru(64, 128, batch_first=True)
        self.gru2 = Gru(128, 256, batch_first=True)
        self.accdecoder, self.acccov_decoder = _head(256, 128, 3), _head(256, 128, 3)
        self.gyrodecoder, self.gyrocov_decoder = _head(256, 128, 3), _head(256, 128, 3)

    def forward(self, acc: Tensor, gyro: Tensor) -> tuple[Tensor, ...]:
        """Correct recordings.

        Args:
            acc: Acceleration, [batch, lead + frames, 3], m/s².
            gyro: Rate of rotation, [batch, lead + frames, 3], rad/s.

        Returns:
            Tensors named by `outputs`, [batch, frames, 3] each.
        """
        encoded = self.cnn(torch.cat([acc, gyro], dim=-1))
        # Explicit zeros keep the states and their batch axis in the graphs.
        zeros = [acc.new_zeros(acc.shape[0], size) for size in self.states.values()]
        features, *_ = self.recur(encoded, *zeros)
        # The first feature covers only the lead-in.
        features = features[:, self.lead // self.hop :]
        frames = torch.arange(acc.shape[1] - self.lead)
        nearest = ((frames + self.hop // 2) // self.hop).clamp(max=features.shape[1] - 1)
        return tuple(output[:, nearest] for output in self.decode(features))

    def steps(self, acc: Tensor, gyro: Tensor, present: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Correct a chunk of running recordings, one correction per feature.

        Args:
            acc: Acceleration, [batch, hop * steps + 2 * reach + 1 - hop, 3].
            gyro: Rate of rotation, same shape as `acc`.
            present: Mask of the recordings' frames, [batch, frames], see :meth:`CnnEncoder.within`.
            *states: States after the preceding feature, [batch, size] each.

        Returns:
            Tensors named by `outputs`, [batch, steps, 3] each, then the states after the last feature.
        """
        encoded = self.cnn.within(torch.cat([acc, gyro], dim=-1), present)
        features, *after = self.recur(encoded, *states)
        return (*self.decode(features), *after)

    def recur(self, encoded: Tensor, state1: Tensor, state2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the GRUs from [batch, steps, 64] to [batch, steps, 256]; return the final states too."""
        features, after1 = self.gru1(encoded, state1[None])
        features, after2 = self.gru2(features, state2[None])
        return features, after1[0], after2[0]

    def decode(self, features: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors named by `outputs` for features [batch, steps, 256]."""
        corrections = (self.accdecoder(features) * self.acc_std, self.gyrodecoder(features) * self.gyro_std)
        if self.outputs == CORRECTIONS:
            return corrections
        heads = (self.acccov_decoder, self.gyrocov_decoder)
        return (*corrections, *(torch.exp(head(features) - 5) for head in heads))


class CodeNetKitti(nn.Module):
    """Network of AirIMU for KITTI's 10 Hz recordings, with convolutions only and one feature per frame.

    Args:
        conf: Settings of the network: the choice of variances as outputs. The scale is stored but not used.
    """

    hop: ClassVar[int] = 1
    reach: ClassVar[int] = 5
    lead: ClassVar[int] = 0
    states: ClassVar[dict[str, int]] = {}

    def __init__(self, conf: Conf) -> None:
        super().__init__()
        self.outputs = CORRECTIONS + COVARIANCES * conf.covariance
        self.register_buffer("gyro_std", torch.tensor(conf.gyro_std))
        self.register_buffer("acc_std", torch.tensor(conf.acc_std))
        self.accEncoder, self.gyroEncoder = (CnnEncoder((3, 32, 64, 128), (7, 3, 3)) for _ in range(2))
        self.accDecoder, self.gyroDecoder = _head(128, 64, 32, 3), _head(128, 64, 32, 3)
        self.accCovDecoder, self.gyroCovDecoder = _head(256, 128, 32, 3), _head(256, 128, 32, 3)

    def forward(self, acc: Tensor, gyro: Tensor) -> tuple[Tensor, ...]:
        """Correct recordings; see :meth:`CodeNet.forward`, with a lead of 0."""
        return self.decode(self.accEncoder(acc), self.gyroEncoder(gyro))

    def steps(self, acc: Tensor, gyro: Tensor, present: Tensor) -> tuple[Tensor, ...]:
        """Correct a chunk of recordings; see :meth:`CodeNet.steps`, without states."""
        return self.decode(self.accEncoder.within(acc, present), self.gyroEncoder.within(gyro, present))

    def decode(self, acc: Tensor, gyro: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors named by `outputs` for features [batch, frames, 128] of each sensor."""
        corrections = (self.accDecoder(acc), self.gyroDecoder(gyro))
        if self.outputs == CORRECTIONS:
            return corrections
        both = torch.cat([acc, gyro], dim=-1)
        return (*corrections, *(torch.exp(head(both)) for head in (self.accCovDecoder, self.gyroCovDecoder)))


Network = CodeNet | CodeNetKitti


def _head(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, size in enumerate(sizes[1:]):
        layers += [nn.Linear(sizes[i], size), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class _Edged(nn.Module):
    """Wrapper that runs a network in its own precision, with float32 inputs and outputs."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def _run(self, run: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        dtype = next(self.network.parameters()).dtype
        return tuple(output.float() for output in run(*(tensor.to(dtype) for tensor in inputs)))


class Whole(_Edged):
    """Wrapper of a network's pass over whole recordings."""

    def forward(self, acc: Tensor, gyro: Tensor) -> tuple[Tensor, ...]:
        """Correct whole recordings; see :meth:`CodeNet.forward`."""
        return self._run(self.network.forward, acc, gyro)


class Steps(_Edged):
    """Wrapper of a network's pass over chunks of recordings."""

    def forward(self, acc: Tensor, gyro: Tensor, present: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Correct a chunk of recordings; see :meth:`CodeNet.steps`."""
        return self._run(self.network.steps, acc, gyro, present, *states)


def load_network(folder: Path, source: str) -> Network:
    """Load a checkpoint's network in float32 and eval mode.

    Args:
        folder: Folder with the conf and the weights.
        source: Name of the checkpoint in error messages.

    Raises:
        InvalidRequest: The conf or the weights are invalid.
    """
    conf = read_conf(folder, source)
    network = build(conf)
    where = f"checkpoint {source}: {WEIGHTS_FILE}"
    content = read_torch_file(folder / WEIGHTS_FILE, where)
    state = state_in(content, network.state_dict().keys(), where)
    # Older versions of pypose stored the constants of its integrator with the weights.
    state = {key: value for key, value in state.items() if not key.startswith("integrator.")}
    load_weights(network, state, where)
    return network.eval().requires_grad_(False)


def build(conf: Conf) -> Network:
    """Build the network that a conf names, with random weights."""
    return NETWORKS[conf.network](conf)


NETWORKS: dict[str, type[Network]] = {"codenet": CodeNet, "codenetkitti": CodeNetKitti}
