"""A world in a terminal: keys as they are pressed, frames as half blocks, two pixels to a character."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.segment import Segment, Segments
from rich.style import Style

from slipway_serving.errors import InvalidRequest
from slipway_serving.matrix_game.keys import Vocabulary

_UPPER_HALF = "▀"
_ESCAPE = "\x1b"


class Keys:
    """The keys that are pressed, block by block, until Escape.

    A terminal says when a key is pressed and not when it is let go: what was pressed since the last block was
    begun is held in the next. Use as a context manager, which puts the terminal back as it was.

    Args:
        known: the keys of the world; others are passed over.
    """

    def __init__(self, known: Vocabulary) -> None:
        self._known = known

    def __enter__(self) -> Keys:
        if not sys.stdin.isatty() or not sys.stdout.isatty():
            raise InvalidRequest(
                "interactive must be used in a terminal, got a file or a pipe; try --actions"
            )
        self._before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def __iter__(self) -> Iterator[str]:
        while (pressed := self._pressed()) is not None:
            yield held(pressed, self._known)

    @staticmethod
    def _pressed() -> str | None:
        """Return what was pressed since the last call; None after Escape."""
        text = ""
        while select.select([sys.stdin], [], [], 0)[0]:
            read = os.read(sys.stdin.fileno(), 1024).decode("utf-8", errors="replace")
            if not read:
                return None
            text += read
        return None if _ESCAPE in text else text


def held(pressed: str, known: Vocabulary) -> str:
    """Return the keys to hold for what was pressed: of those that cannot be held together the latest."""
    keys: list[str] = []
    for key in pressed.lower():
        if key in known.keys:
            keys = [other for other in keys if other != key and other not in known.keys[key].against]
            keys.append(key)
    return "".join(keys)


def picture(frame: NDArray[np.uint8], columns: int, lines: int) -> Segments:
    """Return a frame as characters.

    Args:
        frame: [height, width, 3], uint8.
        columns: at most so many characters a line.
        lines: at most so many.
    """
    from PIL import Image

    height, width, _ = frame.shape
    scale = min(columns / width, 2 * lines / height)
    size = max(1, int(width * scale)), max(2, int(height * scale) // 2 * 2)
    pixels = np.asarray(Image.fromarray(frame).resize(size))
    segments = []
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        segments += [
            Segment(_UPPER_HALF, Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below)))
            for above, below in zip(upper, lower, strict=True)
        ]
        segments.append(Segment.line())
    return Segments(segments)
