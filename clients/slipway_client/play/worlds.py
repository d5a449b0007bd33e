"""A world that is played: keys for each block go out, its frames come back.

Keys are asked for when a block is begun. What is pressed while one is made counts for the next, the latest of
what cannot be held together, and nothing queues up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_client.client import ClientSession
from slipway_serving.errors import Unrecoverable
from slipway_serving.events import FramesPart
from slipway_serving.matrix_game.keys import actions_of
from slipway_serving.matrix_game.request import REQUESTS, BlockMade


@dataclass(frozen=True)
class Block:
    """A block of frames.

    Attributes:
        held: the keys that made it.
        frames: [frames, height, width, 3], uint8.
        made: what the server says of it.
        took_s: from the keys going out to the last answer, seconds.
    """

    held: str
    frames: NDArray[np.uint8]
    made: BlockMade
    took_s: float

    @property
    def status(self) -> str:
        """One line for people."""
        parts = {
            "picture": self.made.picture_s,
            "denoise": self.made.denoise_s,
            "decode": self.made.decode_s,
            "commit": self.made.commit_s,
        }
        each = ", ".join(f"{name} {1e3 * took:.0f}" for name, took in parts.items() if took is not None)
        return (
            f"[{self.held or '-'}] {len(self.frames) / self.took_s:.1f} fps,"
            f" {1e3 * self.took_s:.0f} ms ({each}), {self.made.frames_left} frames left"
        )


def play(
    session: ClientSession,
    mode: str,
    keys: Iterable[str],
    show: Callable[[NDArray[np.uint8]], object] = lambda frames: None,
    *,
    endless: bool = False,
) -> Iterator[Block]:
    """Play a world until the keys or the world end.

    Args:
        session: of the world.
        mode: of the world.
        keys: held in each block; the next is asked for when the block before is there.
        show: is given frames as they come, [frames, height, width, 3], uint8.
        endless: go on from an earlier place where the world would end.

    Raises:
        SlipwayError: as :meth:`Client.generate`.
    """
    turn: Any = REQUESTS[mode].turn
    at_end = False
    for held in keys:
        begun = time.perf_counter()
        frames, made = [], None
        for event in session.step(turn(**actions_of(held, mode), rebase=at_end)):
            if isinstance(event, FramesPart):
                frames.append(event.pixels)
                show(event.pixels)
            elif isinstance(event, BlockMade):
                made = event
        if made is None or not frames:
            raise Unrecoverable(
                f"play: a block must be frames and their end, got {len(frames)} parts and {made}"
            )
        yield Block(held, np.concatenate(frames), made, time.perf_counter() - begun)
        at_end = made.frames_left == 0
        if at_end and not endless:
            return
