"""Small classifier of the colour, shape and motion that a clip shows.

It learns from rendered clips, degraded as a decoder or a shortcut degrades them. It is first evaluated on
renders of subjects that it never saw, and then judges generated clips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from slipway_loadtests.pictures.footage import FRAMES, SHORT, SIDE_PX, Footage
from slipway_loadtests.pictures.render import render
from slipway_loadtests.pictures.scenes import COLOURS, MOTIONS, SHAPES, Subject
from slipway_recipes.fitting import Schedule, fit
from slipway_recipes.recipe import Making

# The judge of short clips sees every fourth frame; a judge of longer clips sees as many, further apart.
EVERY = 4
LOOKED = len(range(0, FRAMES, EVERY))
JUDGE_FILE = "judge.safetensors"
# Channels for the position of a shape and features for its motion; most weights are in the layer between.
_PLACES, _MOVES = 3, 24
_BATCH = 32
_SCHEDULE = Schedule(steps=1000, learning_rate=3e-3, warmup=50)
_WORDS = {"colour": tuple(COLOURS), "shape": SHAPES, "motion": MOTIONS}


class Judge(nn.Module):
    """Network that scores colours, shapes and motions from the frames of a clip."""

    def __init__(self) -> None:
        super().__init__()
        self.frame = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2),
            nn.SiLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.GroupNorm(4, 32),
            nn.SiLU(),
            nn.Conv2d(32, 48, 3, stride=2, padding=1),
            nn.GroupNorm(4, 48),
            nn.SiLU(),
        )
        self.what = nn.Sequential(nn.Conv2d(48, 64, 3), nn.SiLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(1))
        self.colour = nn.Linear(64, len(COLOURS))
        self.shape = nn.Linear(64, len(SHAPES))
        self.where = nn.Conv2d(48, _PLACES, 1)
        self.motion = nn.Sequential(
            nn.Linear(LOOKED * _PLACES * (SIDE_PX // 8) ** 2, _MOVES),
            nn.SiLU(),
            nn.Linear(_MOVES, len(MOTIONS)),
        )

    def forward(self, clips: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Score the colours, shapes and motions of clips.

        Args:
            clips: Clips, [batch, `LOOKED` frames, 3, 64, 64] in [-1, 1].

        Returns:
            Scores, [batch, colours], [batch, shapes] and [batch, motions].
        """
        batch, frames = clips.shape[:2]
        seen = self.frame(clips.flatten(0, 1))
        # In the middle frame the shape is whole, and neither at its largest nor at its smallest.
        what = self.what(seen.unflatten(0, (batch, frames))[:, frames // 2])
        where = self.where(seen).reshape(batch, -1)
        return self.colour(what), self.shape(what), self.motion(where)


@dataclass(frozen=True)
class Verdict:
    """Colour, shape and motion that a clip shows, from `COLOURS`, `SHAPES` and `MOTIONS`."""

    colour: str
    shape: str
    motion: str


@torch.no_grad()
def judged(judge: Judge, clip: NDArray[np.uint8], every: int = EVERY) -> Verdict:
    """Return the colour, shape and motion that a judge sees in a clip.

    Args:
        judge: Trained judge.
        clip: Clip, RGB, [8 * every + 1 frames, 64, 64, 3].
        every: Distance between the frames that the judge sees, as in its training.
    """
    scores = judge(_as_tensor(clip[None, ::every]))
    colour, shape, motion = (int(each.argmax()) for each in scores)
    return Verdict(_WORDS["colour"][colour], _WORDS["shape"][shape], _WORDS["motion"][motion])


def train_judge(
    choice: Sequence[Subject], making: Making, footage: Footage = SHORT, every: int = EVERY
) -> Judge:
    """Train a judge on rendered clips.

    Args:
        choice: Subjects that it sees.
        making: Seed, threads and state folder.
        footage: Kind of clips from which it sees pieces.
        every: Distance between the frames that it sees.
    """
    last = (LOOKED - 1) * every

    def loss(network: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng([making.seed, step])
        scenes = [footage.scene(random, choice) for _ in range(_BATCH)]
        begins = random.integers(footage.frames - last, size=_BATCH)
        looked = [range(begin, begin + last + 1, every) for begin in begins.tolist()]
        clips = np.stack([render(*what, SIDE_PX) for what in zip(scenes, looked, strict=True)])
        device = next(network.parameters()).device
        scores = network(_worsened(_as_tensor(clips).to(device)))
        found = torch.zeros((), device=device)
        for (field, words), score in zip(_WORDS.items(), scores, strict=True):
            true = [words.index(getattr(scene.subject, field)) for scene in scenes]
            found = found + functional.cross_entropy(score, torch.tensor(true, device=device))
        return found

    torch.manual_seed(making.seed)
    judge = fit(Judge(), loss, _SCHEDULE, making, "judge")
    assert isinstance(judge, Judge)
    return judge


def load_judge(folder: Path) -> Judge:
    """Read the judge from a checkpoint's folder."""
    judge = Judge()
    judge.load_state_dict({key: value.float() for key, value in load_file(folder / JUDGE_FILE).items()})
    return judge.eval()


def right(subjects: Sequence[Subject], verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return the shares of clips for which each word is right, and for which all words are."""
    pairs = list(zip(subjects, verdicts, strict=True))
    shares = {
        field: [getattr(subject, field) == getattr(verdict, field) for subject, verdict in pairs]
        for field in _WORDS
    }
    shares["all"] = [all(words) for words in zip(*shares.values(), strict=True)]
    return {field: float(np.mean(words)) for field, words in shares.items()}


def _as_tensor(clips: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(clips)).permute(0, 1, 4, 2, 3).float() / 127.5 - 1


def _worsened(clips: Tensor) -> Tensor:
    """Blur half of the clips, and add noise to all."""
    blurred = functional.avg_pool2d(clips.flatten(0, 1), 3, stride=1, padding=1).view_as(clips)
    share = torch.rand(len(clips), 1, 1, 1, 1, device=clips.device) * 2 - 1
    mixed = torch.lerp(clips, blurred, share.clamp_min(0))
    strength = 0.1 * torch.rand(len(clips), 1, 1, 1, 1, device=clips.device)
    return mixed + strength * torch.randn_like(clips)
