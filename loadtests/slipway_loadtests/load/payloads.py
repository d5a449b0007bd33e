"""Seeded request data like that of real users: prompts, pictures, speech, motion of a walk, keys of a player.

Prompts and pictures match the data of the demo checkpoints; other checkpoints accept them too. Data that
takes milliseconds to generate is generated once per seed, because the load generator shares the processor
with its other users, and perhaps with the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from slipway_loadtests.pictures.captions import caption, plain
from slipway_loadtests.pictures.long_footage import LONG
from slipway_loadtests.pictures.plays import random_play
from slipway_loadtests.pictures.render import render
from slipway_loadtests.pictures.scenes import Scene, subjects
from slipway_serving.families.matrix_game.keys import NOTHING, VOCABULARIES

IMU_HZ = 200
SEEDS = 32
"""Number of different pictures, sounds and motions of each kind."""
_KEPT = 4 * SEEDS
_GRAVITY_M_S2 = 9.81
_SUBJECTS = subjects(unseen=True)
# Size and JPEG quality of a camera's picture, so that decoding and transfer cost as much as for real users.
_SIDE_PX, _QUALITY = 640, 90


def prompt(random: np.random.Generator) -> str:
    """Return a prompt that the demo checkpoints know: a coloured shape in motion."""
    return caption(random, _SUBJECTS[int(random.integers(len(_SUBJECTS)))])


def said(seed: int) -> str:
    """Return the prompt that belongs to the picture of a seed."""
    return plain(_scene(seed).subject)


@lru_cache(_KEPT)
def picture(seed: int) -> bytes:
    """Return a picture of a coloured shape, 640 x 640, as a camera's JPEG."""
    return _jpeg(Image.fromarray(render(_scene(seed), range(1), _SIDE_PX)[0]))


@lru_cache(_KEPT)
def land(seed: int, mode: str) -> bytes:
    """Return the opening picture of a world of a mode, 640 px wide, as a camera's JPEG."""
    frame = Image.fromarray(random_play(np.random.default_rng(seed), mode, 1).frames()[0])
    return _jpeg(frame.resize((_SIDE_PX, _SIDE_PX * frame.height // frame.width)))


@lru_cache(_KEPT)
def speech(seed: int, seconds: float, rate_hz: int) -> NDArray[np.float32]:
    """Return syllables with pauses, made of harmonics over noise, [samples], float32, -1 to 1."""
    random = np.random.default_rng(seed)
    time_s = np.arange(round(seconds * rate_hz)) / rate_hz
    audio = 0.01 * random.standard_normal(time_s.size)
    start_s = random.uniform(0.0, 0.2)
    while start_s < seconds:
        length_s = random.uniform(0.08, 0.3)
        inside = (time_s >= start_s) & (time_s < start_s + length_s)
        pitch_hz, formant_hz = random.uniform(90, 250), random.uniform(300, 3000)
        for harmonic in range(1, 16):
            level = 0.15 * np.exp(-(((harmonic * pitch_hz - formant_hz) / 600) ** 2))
            audio[inside] += level * np.sin(2 * np.pi * harmonic * pitch_hz * time_s[inside])
        start_s += length_s + random.uniform(0.02, 0.3)
    return np.clip(audio, -1, 1).astype(np.float32)


@lru_cache(_KEPT)
def motion(seed: int, batch: int, frames: int) -> Mapping[str, NDArray[np.float32]]:
    """Return recordings of a walk: `acc`, m/s², and `gyro`, rad/s, [batch, frames, 3], float32."""
    random = np.random.default_rng(seed)
    time_s = np.arange(frames) / IMU_HZ
    steps_hz = random.uniform(1.6, 2.2, (batch, 1, 1))
    phases = random.uniform(0, 2 * np.pi, (2, batch, 1, 3))
    swing = 2 * np.pi * steps_hz * time_s[None, :, None]
    acc = np.array([0.6, 0.4, 2.0]) * np.sin(swing + phases[0]) + np.array([0, 0, _GRAVITY_M_S2])
    gyro = np.array([0.5, 0.3, 0.2]) * np.sin(swing / 2 + phases[1])
    noisy = {
        "acc": acc + random.normal(0, 0.03, acc.shape),
        "gyro": gyro + random.normal(0, 0.002, gyro.shape),
    }
    return {name: signal.astype(np.float32) for name, signal in noisy.items()}


def keys(random: np.random.Generator, mode: str) -> str:
    """Return the keys that a player holds during a block of a world: mostly one, sometimes two or none."""
    known = VOCABULARIES[mode].keys
    held = str(random.choice(sorted(known)))
    if random.uniform() < 0.3:
        free = [key for key in known if key != NOTHING and key not in known[held].excludes and key != held]
        held = str(random.choice(free)) + held if held != NOTHING and free else held
    return held


def _scene(seed: int) -> Scene:
    return LONG.scene(np.random.default_rng(seed), _SUBJECTS)


def _jpeg(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
