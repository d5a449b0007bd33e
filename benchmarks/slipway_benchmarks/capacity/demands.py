"""Demands of the families: public or measured service times, with behaviour and promises that we assume."""

from __future__ import annotations

import numpy as np

from slipway_loadtests.capacity.plan import Demand, Service

CPU = "the machine below"


def exponential(mean_s: float, longest_s: float, count: int = 200) -> tuple[float, ...]:
    """Return quantiles of exponentially distributed lengths, capped at the longest, in seconds."""
    shares = (np.arange(count) + 0.5) / count
    lengths: list[float] = np.minimum(-mean_s * np.log1p(-shares), longest_s).tolist()
    return tuple(lengths)


# Behaviour and promises are our assumptions; `source` names the origin of other figures.
WAN_T2V = Demand(
    "wan_t2v",
    service_s=(216.0,),
    each_s=1800.0,
    p95_s=300.0,
    replica="one H200",
    source="public: LightX2V, Wan2.1-14B (the size of one expert), 480p, 81 frames, 40 steps, BF16: 216 s",
)
MATRIX_GAME = Demand(
    "matrix_game",
    service_s=exponential(120.0, 164.0),
    each_s=900.0,
    p95_s=30.0,
    replica="one H100",
    source="public: real time at 25 frames/s on one GPU, so one session each; 164 s is the model's longest",
)
FRAMEPACK = Demand(
    "framepack_i2v",
    service_s=(225.0,),
    each_s=1800.0,
    p95_s=300.0,
    replica="one RTX 4090",
    source="public: 1.5 s a frame with TeaCache, 5 s at 30 frames/s: 225 s",
)
PUBLIC = (WAN_T2V, MATRIX_GAME, FRAMEPACK)


def wakeword_demand(service: Service) -> Demand:
    """Return the demand of a listening device, from the measured service of a clip of 1 s."""
    source = "measured: a window of 1 s every 0.5 s, AST of the public size"
    return Demand(
        "wakeword", service.alone_s, 0.5, 0.5, service.rates, streamed=True, replica=CPU, source=source
    )


def airimu_demand(service: Service) -> Demand:
    """Return the demand of a sensor, from the measured service of a chunk of 0.5 s."""
    source = "measured: a chunk of 0.5 s at 200 Hz, the public size"
    return Demand(
        "airimu", service.alone_s, 0.5, 0.1, service.rates, streamed=True, replica=CPU, source=source
    )


def world_demand(service: Service, block_s: float) -> Demand:
    """Return the demand of a player, from the measured service of a block of a world.

    Args:
        service: Service of a block with a full window.
        block_s: Length of the block's frames, in seconds.
    """
    source = f"measured: a block every {block_s:g} s, tiny; a block is there before the next is due"
    return Demand(
        "matrix_game, tiny",
        service.alone_s,
        block_s,
        block_s,
        service.rates,
        streamed=True,
        replica=CPU,
        source=source,
    )
