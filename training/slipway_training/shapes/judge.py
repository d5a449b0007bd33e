"""A small classifier that tells which colour, shape and motion a clip shows.

It learns from rendered clips, worsened as a decoder or a shortcut worsens them, and is itself judged on
renders of subjects that it never saw; only then does it judge generated clips.
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

from slipway_training.fitting import Schedule, fit
from slipway_training.recipe import Making
from slipway_training.shapes.clips import FRAMES, SHORT, SIDE_PX, Footage
from slipway_training.shapes.render import render
from slipway_training.shapes.scenes import COLOURS, MOTIONS, SHAPES, Subject

# The judge of short clips looks at every fourth frame; another one at as many, further apart.
EVERY = 4
LOOKED = len(range(0, FRAMES, EVERY))
JUDGE_FILE = "judge.safetensors"
# Channels that tell where a shape is, and numbers that tell how it moves; most of its weights are between.
_PLACES, _MOVES = 3, 24
_BATCH = 32
_SCHEDULE = Schedule(steps=1000, learning_rate=3e-3, warmup=50)
_WORDS = {"colour": tuple(COLOURS), "shape": SHAPES, "motion": MOTIONS}


class Judge(nn.Module):
    """Frames to scores of colours, shapes and motions."""

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
        """Score clips.

        Args:
            clips: [batch, `LOOKED` frames, 3, 64, 64] in [-1, 1].

        Returns:
            Scores, [batch, colours], [batch, shapes] and [batch, motions].
        """
        batch, frames = clips.shape[:2]
        seen = self.frame(clips.flatten(0, 1))
        # The middle frame, in which the shape is whole and neither its largest nor its smallest.
        what = self.what(seen.unflatten(0, (batch, frames))[:, frames // 2])
        where = self.where(seen).reshape(batch, -1)
        return self.colour(what), self.shape(what), self.motion(where)


@dataclass(frozen=True)
class Verdict:
    """The words that a clip shows, as keys of `COLOURS`, `SHAPES` and `MOTIONS`."""

    colour: str
    shape: str
    motion: str


@torch.no_grad()
def judged(judge: Judge, clip: NDArray[np.uint8], every: int = EVERY) -> Verdict:
    """Return what a clip shows.

    Args:
        judge: a trained one.
        clip: RGB, [8 every + 1 frames, 64, 64, 3].
        every: frames from one that is looked at to the next, as in training.
    """
    scores = judge(_as_tensor(clip[None, ::every]))
    colour, shape, motion = (int(each.argmax()) for each in scores)
    return Verdict(_WORDS["colour"][colour], _WORDS["shape"][shape], _WORDS["motion"][motion])


def train_judge(
    choice: Sequence[Subject], making: Making, footage: Footage = SHORT, every: int = EVERY
) -> Judge:
    """Train a judge on rendered clips.

    Args:
        choice: the subjects that it sees.
        making: seed, threads and state.
        footage: of which it sees pieces.
        every: frames from one that is looked at to the next.
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
    """Read the judge that lies beside a checkpoint's parts."""
    judge = Judge()
    judge.load_state_dict({key: value.float() for key, value in load_file(folder / JUDGE_FILE).items()})
    return judge.eval()


def right(subjects: Sequence[Subject], verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return the share of clips in which each word is right, and in which all of them are."""
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
    """Blur half of the clips, and put noise on all."""
    blurred = functional.avg_pool2d(clips.flatten(0, 1), 3, stride=1, padding=1).view_as(clips)
    share = torch.rand(len(clips), 1, 1, 1, 1, device=clips.device) * 2 - 1
    mixed = torch.lerp(clips, blurred, share.clamp_min(0))
    strength = 0.1 * torch.rand(len(clips), 1, 1, 1, 1, device=clips.device)
    return mixed + strength * torch.randn_like(clips)
