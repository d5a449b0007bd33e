"""Seeded data that looks like the real: prompts, pictures, speech, steps of a walk, keys of a player.

What takes milliseconds to make is made once for each seed: whoever makes load shares the processor with its
other users, and perhaps with the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from slipway_serving.matrix_game.keys import NOTHING, VOCABULARIES

IMU_HZ = 200
SEEDS = 32
"""Of pictures, sounds and motions there are so many of each kind."""
_KEPT = 4 * SEEDS
_GRAVITY_M_S2 = 9.81
_SUBJECTS = (
    "an old fisherman",
    "two red foxes",
    "a paper boat",
    "a violinist",
    "a small robot",
    "a grey horse",
)
_DOINGS = ("crosses a wooden bridge", "waits in the rain", "turns around slowly", "runs through tall grass")
_PLACES = (
    "at sunset",
    "in a narrow street at night",
    "under falling snow",
    "on a beach in the morning light",
)
_STYLES = ("", ", hand-held camera", ", shallow depth of field, 35 mm", ", slow aerial shot")


def prompt(random: np.random.Generator) -> str:
    """Return a sentence such as people write."""
    parts = (random.choice(words) for words in (_SUBJECTS, _DOINGS, _PLACES, _STYLES))
    return "{} {} {}{}".format(*parts)


@lru_cache(_KEPT)
def picture(seed: int, height: int = 352, width: int = 640) -> bytes:
    """Return a landscape, as a camera's JPEG: sky, sun and hills under grain, in RGB."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    sky, ground = random.uniform(90, 255, 3), random.uniform(20, 140, 3)
    pixels = sky * (1 - 0.5 * rows[..., None]) + 0 * columns[..., None]
    centre_y, centre_x = random.uniform(0.1, 0.4), random.uniform(0.1, 0.9)
    sun = np.exp(-((rows - centre_y) ** 2 + (columns - centre_x) ** 2) / 0.005)
    pixels = pixels + 120 * sun[..., None]
    for layer in range(1, 4):
        waves = np.sin(2 * np.pi * (columns * random.uniform(1, 4) + random.uniform()))
        hills = rows > 0.45 + 0.13 * layer + 0.06 * waves
        pixels[hills] = ground / layer
    grainy = np.clip(pixels + random.normal(0, 4, pixels.shape), 0, 255).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(grainy).save(file, "JPEG", quality=90)
    return file.getvalue()


@lru_cache(_KEPT)
def speech(seed: int, seconds: float, rate_hz: int) -> NDArray[np.float32]:
    """Return syllables with pauses, harmonics of a pitch under noise, [samples], float32, -1 to 1."""
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
    """Return what a player holds in a block of a world: mostly one key, sometimes two or none."""
    known = VOCABULARIES[mode].keys
    held = str(random.choice(sorted(known)))
    if random.uniform() < 0.3:
        free = [key for key in known if key != NOTHING and key not in known[held].against and key != held]
        held = str(random.choice(free)) + held if held != NOTHING and free else held
    return held
