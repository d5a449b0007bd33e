"""Loop that plays a world: it sends the keys of each block and receives the block's frames.

Keys are read when a block begins. Keys pressed while the server makes a block count for the next one; of keys
that exclude each other the latest counts. Nothing queues up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_client.client import ClientSession
from slipway_serving.families.matrix_game.keys import actions_of
from slipway_serving.families.matrix_game.request import REQUESTS, BlockMade
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.protocol.events import FramesPart


@dataclass(frozen=True)
class Block:
    """Block of frames that a turn returned.

    Attributes:
        held: Keys that were held in the block.
        frames: Pixels, [frames, height, width, 3], uint8.
        made: Event in which the server reports the finished block.
        took_s: Time from sending the keys to the last answer, in seconds.
    """

    held: str
    frames: NDArray[np.uint8]
    made: BlockMade
    took_s: float

    @property
    def status(self) -> str:
        """Return a status line for display."""
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
        session: Session of the world.
        mode: Mode of the world.
        keys: Keys to hold in each block; each is read when the block before it is complete.
        show: Callback that receives frames as they arrive, [frames, height, width, 3], uint8.
        endless: True to rebase to an earlier place where the world would end.

    Raises:
        SlipwayError: A turn failed, as in :meth:`Client.generate`.
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
