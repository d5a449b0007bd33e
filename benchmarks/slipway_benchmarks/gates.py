"""Gates of the benchmarks: least values of a figure, below which a command ends with exit code 1."""

from __future__ import annotations

from collections.abc import Mapping

from slipway_serving.protocol.errors import SlipwayError


class GateMissed(SlipwayError):
    """A measured subject is below a gate; the files and the tables of the benchmark are written."""

    code = "GATE"


def check_gates(found: Mapping[str, Mapping[str, float]], least: Mapping[str, float | None]) -> None:
    """Refuse subjects that are below a gate.

    Args:
        found: Values of each subject by gate. An identical result has no PSNR, so it has no value here.
        least: Least value by gate; None for a gate that the user did not give.

    Raises:
        GateMissed: A value is below its gate, or is not a number. The message names each such subject.
    """
    missed = [
        f"{gate} must be at least {bound:g} for {subject}, got {values[gate]:.4g}"
        for gate, bound in least.items()
        if bound is not None
        for subject, values in found.items()
        if gate in values and not values[gate] >= bound
    ]
    if missed:
        raise GateMissed(f"bench: {' | '.join(missed)}")
