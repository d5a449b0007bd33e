"""Keys that steer a world: upstream's vocabulary of each mode, and scripts of keys.

A key moves (it sets a column of the keyboard to 1), looks (it adds a mouse value, up and down or left and
right) or does nothing. A script lists the keys that are held in each block, in order: a character is a block,
keys held together are in parentheses, and `*N` holds a block's keys for N blocks: `ww(wl)*3 s`. Spaces are
ignored, and so is the rest of a line after `#`. Values are those of upstream's demonstrations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import InvalidRequest

NOTHING = "q"
"""Key that does nothing, in every mode."""
# Mouse value per frame while a key turns the view.
_TURN = 0.1
_WORD = re.compile(r"(?P<one>[^\s()*#])|\((?P<many>[^()]*)\)|(?P<space>\s+|#[^\n]*)")
_TIMES = re.compile(r"\*(\d+)")
# An hour has 8,000 blocks, so no typed script needs more.
_LONGEST = 100_000


@dataclass(frozen=True)
class Key:
    """Effect of holding a key.

    Args:
        label: Display name.
        column: Column of the keyboard that the key sets to 1; None for a key without one.
        look: Value that the key adds to the mouse, up and down, left and right.
        excludes: Keys that cannot be held with it.
    """

    label: str
    column: int | None = None
    look: tuple[float, float] = (0.0, 0.0)
    excludes: str = ""


@dataclass(frozen=True)
class Vocabulary:
    """Keys of a mode.

    Args:
        keyboard: Number of columns of the keyboard.
        mouse: True if the mode has a mouse.
        keys: Keys by character.
    """

    keyboard: int
    mouse: bool
    keys: Mapping[str, Key]

    @property
    def text(self) -> str:
        """Return a line that describes the keys."""
        return ", ".join(f"{character} {key.label}" for character, key in self.keys.items())


VOCABULARIES: Mapping[str, Vocabulary] = {
    "universal": Vocabulary(
        keyboard=4,
        mouse=True,
        keys={
            "w": Key("forward", 0, excludes="s"),
            "s": Key("back", 1, excludes="w"),
            "a": Key("left", 2, excludes="d"),
            "d": Key("right", 3, excludes="a"),
            "i": Key("look up", look=(_TURN, 0.0), excludes="k"),
            "k": Key("look down", look=(-_TURN, 0.0), excludes="i"),
            "j": Key("look left", look=(0.0, -_TURN), excludes="l"),
            "l": Key("look right", look=(0.0, _TURN), excludes="j"),
            "q": Key("nothing"),
        },
    ),
    "gta_drive": Vocabulary(
        keyboard=2,
        mouse=True,
        keys={
            "w": Key("forward", 0, excludes="s"),
            "s": Key("back", 1, excludes="w"),
            "a": Key("steer left", look=(0.0, -_TURN), excludes="d"),
            "d": Key("steer right", look=(0.0, _TURN), excludes="a"),
            "q": Key("nothing"),
        },
    ),
    # One of the seven keys is held at any time; one of them is standing still.
    "templerun": Vocabulary(
        keyboard=7,
        mouse=False,
        keys={
            "q": Key("no move", 0, excludes="wszcad"),
            "w": Key("jump", 1, excludes="qszcad"),
            "s": Key("slide", 2, excludes="qwzcad"),
            "z": Key("turn left", 3, excludes="qwscad"),
            "c": Key("turn right", 4, excludes="qwszad"),
            "a": Key("left side", 5, excludes="qwszcd"),
            "d": Key("right side", 6, excludes="qwszca"),
        },
    ),
}


def vocabulary(mode: str) -> Vocabulary:
    """Return the keys of a mode.

    Raises:
        InvalidRequest: There is no such mode.
    """
    if mode not in VOCABULARIES:
        raise InvalidRequest(f"mode must be one of {', '.join(VOCABULARIES)}, got {mode!r}")
    return VOCABULARIES[mode]


def parse_script(text: str, mode: str) -> list[str]:
    """Return the keys that are held in each block.

    Args:
        text: Script in the form that this module describes.
        mode: Mode whose keys the script uses.

    Raises:
        InvalidRequest: A character is not a key of the mode, keys cannot be held together, or the script is
            empty, too long or malformed; the message names the block, counted from 1.
    """
    known = vocabulary(mode)
    blocks: list[str] = []
    for keys_held, times in _parse_words(text):
        _check(known, keys_held, len(blocks) + 1, mode)
        if len(blocks) + times > _LONGEST:
            raise InvalidRequest(f"actions must have at most {_LONGEST:,} blocks, got more")
        blocks += [keys_held] * times
    if not blocks:
        raise InvalidRequest(f"actions must have at least one block, got {text!r}; keys are {known.text}")
    return blocks


def actions_of(keys_held: str, mode: str) -> dict[str, NDArray[np.float32]]:
    """Return the fields of a turn that holds keys for all frames of a block.

    Args:
        keys_held: Keys of the mode, one character each; an empty text means `q`.
        mode: Mode whose keys they are.

    Returns:
        ``keyboard_cond``, [1, columns], 0 or 1, and, if there is a mouse, ``mouse_cond``, [1, 2], up and
        down, left and right.

    Raises:
        InvalidRequest: The keys break a rule, as in :func:`parse_script`.
    """
    known = vocabulary(mode)
    _check(known, keys_held, 1, mode)
    keys = [known.keys[key] for key in keys_held or NOTHING]
    keyboard = np.zeros((1, known.keyboard), np.float32)
    keyboard[0, [key.column for key in keys if key.column is not None]] = 1.0
    look = np.sum([key.look for key in keys], axis=0, dtype=np.float32)[None]
    return {"keyboard_cond": keyboard} | ({"mouse_cond": look} if known.mouse else {})


def _parse_words(text: str) -> Iterator[tuple[str, int]]:
    """Yield the keys of each word and the number of blocks for which they are held."""
    position = 0
    while position < len(text):
        word = _WORD.match(text, position)
        if word is None:
            raise InvalidRequest(
                "actions must be keys such as w, groups of keys such as (wl), and repetitions such as *3, got"
                f" {text[position:][:12]!r} at character {position + 1}"
            )
        position = word.end()
        if word["space"] is not None:
            continue
        times = _TIMES.match(text, position)
        position = position if times is None else times.end()
        keys_held = word["one"] if word["one"] is not None else "".join(word["many"].split())
        # More digits would exceed the longest script anyway.
        count = 1 if times is None else int(times[1][:9])
        if count < 1:
            raise InvalidRequest(f"actions must repeat keys 1 time or more, got {keys_held}*{count}")
        yield keys_held, count


def _check(known: Vocabulary, keys_held: Sequence[str], block: int, mode: str) -> None:
    """Refuse keys that the mode lacks, that repeat, or that cannot be held together."""
    unknown = sorted(set(keys_held) - known.keys.keys())
    if unknown:
        raise InvalidRequest(
            f"actions: block {block} must be keys of {mode} ({known.text}), got {''.join(unknown)!r}"
        )
    if len(set(keys_held)) < len(keys_held):
        raise InvalidRequest(f"actions: block {block} must hold each key once, got ({keys_held})")
    for key in keys_held:
        if clash := [other for other in keys_held if other in known.keys[key].excludes]:
            raise InvalidRequest(
                f"actions: block {block} must not hold {key} ({known.keys[key].label}) together with"
                f" {clash[0]} ({known.keys[clash[0]].label}), got ({keys_held})"
            )
