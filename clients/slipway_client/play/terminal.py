"""A world in a terminal: keys as they are pressed, frames as half blocks, two pixels to a character."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Iterator
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from slipway_serving.errors import InvalidRequest
from slipway_serving.matrix_game.keys import Vocabulary

_ESCAPE = "\x1b"
# Arrows and other keys that a terminal sends as sequences.
_SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")
# ECMA-48 and xterm: the other screen without a cursor, and back; colours of a character's two halves.
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[0m\x1b[?25h\x1b[?1049l"
_HOME, _PLAIN, _REST_OF_LINE = "\x1b[H", "\x1b[0m", "\x1b[K"
_CELL = "\x1b[38;2;{};{};{};48;2;{};{};{}m▀"


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
        return typed(text)


def typed(text: str) -> str | None:
    """Return the characters of what a terminal sent, without its sequences; None with Escape among them."""
    characters = _SEQUENCE.sub("", text)
    return None if _ESCAPE in characters else characters


def held(pressed: str, known: Vocabulary) -> str:
    """Return the keys to hold for what was pressed: of those that cannot be held together the latest."""
    keys: list[str] = []
    for key in pressed.lower():
        if key in known.keys:
            keys = [other for other in keys if other != key and other not in known.keys[key].against]
            keys.append(key)
    return "".join(keys)


class Screen:
    """The terminal's other screen: frames from its top, a line of status and the keys at its bottom.

    Use as a context manager, which brings back what was there before. Written by hand, since frames come
    25 times a second: a library that lays out each character took a tenth of a second for one.

    Args:
        keys: the line about them.
    """

    def __init__(self, keys: str) -> None:
        self._keys = keys

    def __enter__(self) -> Screen:
        _write(_OTHER_SCREEN)
        self.say("")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _write(_OWN_SCREEN)

    def show(self, frames: NDArray[np.uint8]) -> None:
        """Show frames one after the other, [frames, height, width, 3], uint8."""
        columns, lines = os.get_terminal_size()
        for frame in frames:
            _write(f"{_HOME}{picture(frame, columns, max(1, lines - 2))}")

    def say(self, status: str) -> None:
        """Show a line of status."""
        columns, lines = os.get_terminal_size()
        for place, line in ((lines - 1, status), (lines, self._keys)):
            _write(f"\x1b[{place};1H{_PLAIN}{line[:columns]}{_REST_OF_LINE}")


def picture(frame: NDArray[np.uint8], columns: int, lines: int) -> str:
    """Return a frame as characters in 24-bit colours, a line for each two rows of pixels.

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
    cells = np.concatenate([pixels[::2], pixels[1::2]], axis=2).tolist()
    return "\n".join("".join(_CELL.format(*cell) for cell in line) + _PLAIN + _REST_OF_LINE for line in cells)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
