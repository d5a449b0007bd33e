"""Replacements for operators that ONNX Runtime lacks in float64: convolution, GRU and error function.

Inside :func:`double_operators` they become matrix products, a scan over time and a series, which use only
operators that it has. The network's own pass, the reference of the verification, uses torch's operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.nn import functional

from slipway_export.families.airimu.network import Gru

# At this degree the series has converged to the rounding error of float64.
_DEGREE = 27
_SCALE = 2.0**30


def _series() -> list[float]:
    # At the zeros of the Chebyshev polynomial of the next degree, the fit is a cosine transform.
    angles = np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1)
    t = torch.from_numpy((np.cos(angles) + 1) / 2)
    values = (torch.special.erfcx(2 / t - 2) / t).log().numpy()
    terms = [2 * float(np.mean(values * np.cos(degree * angles))) for degree in range(_DEGREE + 1)]
    return [terms[0] / 2, *terms[1:]]


# The series is computed at import, since tensors have no values inside a trace.
_SERIES = _series()


@contextlib.contextmanager
def double_operators(module: nn.Module) -> Iterator[None]:
    """Trace a float64 network with operators that ONNX Runtime has; leave other networks unchanged."""
    if all(parameter.dtype is not torch.float64 for parameter in module.parameters()):
        yield
        return
    originals = functional.conv1d, functional.gelu, Gru.forward
    functional.conv1d, functional.gelu, Gru.forward = _conv1d, _gelu, _gru  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        functional.conv1d, functional.gelu, Gru.forward = originals  # type: ignore[method-assign]


def _conv1d(
    signal: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Tensor:
    """Replace torch's function with one matrix product for each tap of the kernel."""
    (step,), (pad,), (spread,) = (x if isinstance(x, tuple) else (x,) for x in (stride, padding, dilation))
    if groups != 1 or spread != 1:
        raise TypeError(f"float64 convolution: groups and dilation must be 1, got {groups} and {spread}")
    padded = functional.pad(signal, (pad, pad))
    taps = weight.shape[2]
    reach = padded.shape[2] - taps + 1
    products = [weight[:, :, tap] @ padded[:, :, tap : tap + reach : step] for tap in range(taps)]
    return torch.stack(products).sum(dim=0) + bias[:, None]


def _gru(self: Gru, signal: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the forward of a GRU of one layer; inputs are [batch, steps, size] and [1, batch, hidden]."""
    weight_ih, weight_hh, bias_ih, bias_hh = self.all_weights[0]
    gates = signal @ weight_ih.T + bias_ih

    def step(hidden: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        input_gates, hidden_gates = gate.chunk(3, dim=-1), (hidden @ weight_hh.T + bias_hh).chunk(3, dim=-1)
        reset, update = (torch.sigmoid(input_gates[i] + hidden_gates[i]) for i in range(2))
        new = torch.tanh(input_gates[2] + reset * hidden_gates[2])
        after = new + update * (hidden - new)
        # A scan needs separate tensors for the carried state and the output.
        return after, after.clone()

    after, steps = scan(step, state[0], gates.transpose(0, 1))
    return steps.transpose(0, 1), after[None]


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate != "none":
        raise TypeError(f"float64 GELU: approximate must be none, got {approximate}")
    return 0.5 * x * (1 + erf(x * torch.tensor(0.5**0.5, dtype=torch.float64)))


def erf(x: Tensor) -> Tensor:
    """Return the error function from elementary operations, within 5e-15.

    `erfc(x) = t exp(P(t) - x^2)` for `x >= 0` and `t = 2 / (2 + x)`, with a Chebyshev series `P` that is
    fitted here (the form is that of Press et al., Numerical Recipes, section 6.2.2).
    """
    # The coefficients are tensors, since the exporter rounds Python numbers to float32, and scaled, since its
    # optimizer drops additions of less than 1e-8.
    first, *rest = (torch.tensor(_SCALE * coefficient, dtype=torch.float64) for coefficient in _SERIES)
    size = x.abs()
    t = 2 / (2 + size)
    # This is Clenshaw's recurrence in 4 t - 2, twice the series' variable 2 t - 1.
    twice = 4 * t - 2
    high, higher = torch.zeros_like(t), torch.zeros_like(t)
    for coefficient in reversed(rest):
        high, higher = twice * high - higher + coefficient, high
    series = (0.5 * twice * high - higher + first) / _SCALE
    return torch.sign(x) * (1 - t * torch.exp(series - size * size))
