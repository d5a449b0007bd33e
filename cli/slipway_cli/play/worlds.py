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

from slipway_client.sessions import ClientSession
from slipway_serving.families.matrix_game.keys import actions_of
from slipway_serving.families.matrix_game.request import REQUESTS, BlockMade
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.protocol.events import FramesPart


@dataclass(frozen=True)
class PlayedBlock:
    """Block of frames that a turn returned.

    Attributes:
        keys: Keys that were held in the block.
        frames: Pixels, [frames, height, width, 3], uint8.
        report: Event in which the server reports the finished block.
        duration_s: Time from sending the keys to the last answer, in seconds.
    """

    keys: str
    frames: NDArray[np.uint8]
    report: BlockMade
    duration_s: float

    @property
    def status(self) -> str:
        """Return a status line for display."""
        parts = {
            "picture": self.report.picture_s,
            "denoise": self.report.denoise_s,
            "decode": self.report.decode_s,
            "commit": self.report.commit_s,
        }
        each = ", ".join(
            f"{name} {1e3 * seconds:.0f}" for name, seconds in parts.items() if seconds is not None
        )
        return (
            f"[{self.keys or '-'}] {len(self.frames) / self.duration_s:.1f} fps,"
            f" {1e3 * self.duration_s:.0f} ms ({each}), {self.report.frames_left} frames left"
        )


def play(
    session: ClientSession,
    mode: str,
    keys: Iterable[str],
    show: Callable[[NDArray[np.uint8]], object] = lambda frames: None,
    *,
    endless: bool = False,
) -> Iterator[PlayedBlock]:
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
    for block_keys in keys:
        started_s = time.perf_counter()
        frames, report = [], None
        for event in session.step(turn(**actions_of(block_keys, mode), rebase=at_end)):
            if isinstance(event, FramesPart):
                frames.append(event.pixels)
                show(event.pixels)
            elif isinstance(event, BlockMade):
                report = event
        if report is None or not frames:
            raise Unrecoverable(
                f"play: a turn must return frames and BlockMade, got {len(frames)} parts and {report}; see"
                " the log"
            )
        yield PlayedBlock(block_keys, np.concatenate(frames), report, time.perf_counter() - started_s)
        at_end = report.frames_left == 0
        if at_end and not endless:
            return
