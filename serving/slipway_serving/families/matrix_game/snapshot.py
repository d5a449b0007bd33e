"""Conversion of a world to arrays and back, so that another server can resume it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.diffusion.noise import Noise
from slipway_serving.families.matrix_game.facts import Facts
from slipway_serving.families.matrix_game.world import Networks, World
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.texts import short
from slipway_serving.runtime.snapshots.states import ArraySpec

Arrays = dict[str, NDArray[Any]]

# Frames are counted in 32 bits, 12 for each block. Half of the range is left for blocks after the snapshot.
_MOST_BLOCKS = 2**31 // 24
# Networks return far smaller values. The decoder squares its features, which overflow from 1e19 on.
_LARGEST = 1e6
_PICTURE, _NOISE = "picture", "noise"
_ROWS, _CROSS_ATTENTION, _WINDOW, _DECODER = "rows.", "crossed.", "window.", "decoder."


def array_specs(facts: Facts, networks: Networks) -> dict[str, ArraySpec]:
    """Return the shapes and types of the arrays of a world with at least one block, by name.

    Args:
        facts: Facts of the mode.
        networks: Networks of the mode.
    """
    sizes = facts.latents
    caches = {
        _CROSS_ATTENTION: networks.cross_attention,
        _WINDOW: networks.window,
        _DECODER: networks.decoder_caches,
    }
    rows = facts.actions.before + facts.block_frames(first=True) - facts.block_frames(first=False)
    return {
        _PICTURE: ArraySpec((1, sizes.channels, sizes.picture_frames, sizes.height, sizes.width)),
        _NOISE: ArraySpec(Noise(0).state.shape, "uint8"),
        **{_ROWS + name: ArraySpec((rows, width)) for name, width in facts.actions.widths.items()},
        **{
            prefix + name: ArraySpec(shape)
            for prefix, shapes in caches.items()
            for name, shape in shapes.items()
        },
    }


def scalars(world: World) -> dict[str, Any]:
    """Return the values of a world that are not arrays."""
    return {"blocks": world.blocks, "position": world.position}


def array_reader(world: World) -> Callable[[str], NDArray[Any]]:
    """Return a callback that reads one array of a world from the device, by its :func:`array_specs` name."""
    caches_by_prefix = {
        _CROSS_ATTENTION: world.cross_attention,
        _WINDOW: world.window,
        _DECODER: world.decoder or {},
    }

    def read(name: str) -> NDArray[Any]:
        if name in (_PICTURE, _NOISE):
            return world.picture if name == _PICTURE else world.noise.state
        prefix, _, rest = name.partition(".")
        if f"{prefix}." == _ROWS:
            return world.rows[rest]
        value: NDArray[Any] = caches_by_prefix[f"{prefix}."][rest].numpy()
        return value

    return read


def restore_world(
    values: Mapping[str, Any], arrays: Arrays, facts: Facts, networks: Networks, where: str
) -> World:
    """Return the world that was saved as values and arrays.

    Args:
        values: Values from :func:`scalars`.
        arrays: Arrays by the names in :func:`array_specs`, all of them; the call empties the mapping.
        facts: Facts of the mode.
        networks: Networks of the mode.
        where: Name of the model, for messages.

    Raises:
        InvalidRequest: The values or arrays are not those of a world.
    """
    blocks, position = (values.get(name) for name in ("blocks", "position"))
    places = range(facts.latents.block_frames, facts.latents.positions + 1, facts.latents.block_frames)
    if type(blocks) is not int or type(position) is not int or position not in places:
        raise InvalidRequest(
            f"{where}: restore must describe a world between two blocks, got blocks {short(blocks)} at"
            f" position {short(position)}"
        )
    if not 1 <= blocks <= _MOST_BLOCKS:
        raise InvalidRequest(
            f"{where}: restore must describe a world of 1 to {_MOST_BLOCKS} blocks, got {short(blocks)}"
        )

    def take(prefix: str) -> Arrays:
        names = [name for name in arrays if name.startswith(prefix)]
        return {name.removeprefix(prefix): arrays.pop(name) for name in names}

    try:
        noise = Noise.at(arrays.pop(_NOISE))
    except ValueError as error:
        raise InvalidRequest(
            f"{where}: restore must contain the state of a noise generator, got {error}"
        ) from None
    # The comparison is False for NaN.
    if wrong := [name for name, array in arrays.items() if not (np.abs(array) <= _LARGEST).all()]:
        raise InvalidRequest(
            f"{where}: restore must contain finite numbers of at most {_LARGEST:g}, got others in {wrong[0]}"
        )
    rows, picture = take(_ROWS), arrays.pop(_PICTURE)
    cross_attention, window, decoder = (take(prefix) for prefix in (_CROSS_ATTENTION, _WINDOW, _DECODER))
    caches = (
        networks.to_device(cross_attention),
        networks.to_device(window),
        networks.decoder_to_device(decoder),
    )
    return World(picture, noise, *caches, rows, blocks, position)
