"""Terminal display of a world: keys as they are pressed, and frames as half blocks of two pixels each."""

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

from slipway_serving.families.matrix_game.keys import Vocabulary
from slipway_serving.protocol.errors import InvalidRequest

_ESCAPE = "\x1b"
# Terminals send arrows and some other keys as escape sequences.
_SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")
# ECMA-48 and xterm: alternate screen without a cursor, and back; colours of a character's two halves.
_ALTERNATE_SCREEN, _PRIMARY_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[0m\x1b[?25h\x1b[?1049l"
_HOME, _PLAIN, _REST_OF_LINE = "\x1b[H", "\x1b[0m", "\x1b[K"
_CELL = "\x1b[38;2;{};{};{};48;2;{};{};{}m▀"


class Keys:
    """Iterator of the keys to hold in each block, until Escape is pressed.

    A terminal reports when a key is pressed but not when it is released, so the keys pressed since the last
    block began are held in the next one. Use it as a context manager, which restores the terminal's mode.

    Args:
        keymap: Keys of the world; others are ignored.
    """

    def __init__(self, keymap: Vocabulary) -> None:
        self._keymap = keymap

    def __enter__(self) -> Keys:
        if not sys.stdin.isatty() or not sys.stdout.isatty():
            raise InvalidRequest(
                "--interactive must be used in a terminal, got a file or a pipe; try --actions"
            )
        self._terminal_mode = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._terminal_mode)

    def __iter__(self) -> Iterator[str]:
        while (pressed := self._read_keys()) is not None:
            yield select_keys(pressed, self._keymap)

    @staticmethod
    def _read_keys() -> str | None:
        """Return the keys pressed since the last call, or None after Escape."""
        text = ""
        while select.select([sys.stdin], [], [], 0)[0]:
            read = os.read(sys.stdin.fileno(), 1024).decode("utf-8", errors="replace")
            if not read:
                return None
            text += read
        return without_escapes(text)


def without_escapes(text: str) -> str | None:
    """Return a terminal's characters without its escape sequences, or None if Escape is among them."""
    characters = _SEQUENCE.sub("", text)
    return None if _ESCAPE in characters else characters


def select_keys(pressed: str, keymap: Vocabulary) -> str:
    """Return the keys to hold; of pressed keys that exclude each other, the latest counts."""
    keys: list[str] = []
    for key in pressed.lower():
        if key in keymap.keys:
            keys = [other for other in keys if other != key and other not in keymap.keys[key].excludes]
            keys.append(key)
    return "".join(keys)


class Screen:
    """Alternate screen of the terminal: frames at the top, a status line and the keys at the bottom.

    Use it as a context manager, which restores the previous screen. The output is written by hand because
    frames arrive 25 times a second, and a library that lays out each character took 0.1 s for one frame.

    Args:
        keys: Line that describes the keys.
    """

    def __init__(self, keys: str) -> None:
        self._keys = keys

    def __enter__(self) -> Screen:
        _write(_ALTERNATE_SCREEN)
        self.show_status("")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _write(_PRIMARY_SCREEN)

    def show(self, frames: NDArray[np.uint8]) -> None:
        """Show frames one after the other, [frames, height, width, 3], uint8."""
        columns, lines = os.get_terminal_size()
        for frame in frames:
            _write(f"{_HOME}{render(frame, columns, max(1, lines - 2))}")

    def show_status(self, status: str) -> None:
        """Show a status line."""
        columns, lines = os.get_terminal_size()
        for row, line in ((lines - 1, status), (lines, self._keys)):
            _write(f"\x1b[{row};1H{_PLAIN}{line[:columns]}{_REST_OF_LINE}")


def render(frame: NDArray[np.uint8], columns: int, lines: int) -> str:
    """Return a frame as characters in 24-bit colours, one line for every two rows of pixels.

    Args:
        frame: Pixels, [height, width, 3], uint8.
        columns: Largest number of characters in a line.
        lines: Largest number of lines.
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
