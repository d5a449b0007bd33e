"""Quality of worlds: whether their frames follow the keys, block by block and mode by mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_benchmarks.quality.benchmark import (
    Example,
    Export,
    Figures,
    MeaningOptions,
    Measure,
    Report,
    refuse_denoising,
)
from slipway_benchmarks.quality.shapes import PSNR, median_db
from slipway_client import Client, FramesPart
from slipway_export.spec import Precision
from slipway_loadtests.pictures.plays import Play, first_row
from slipway_recipes.judges.worlds import obeyed, verdicts
from slipway_recipes.matrix_game.measures import PLAY_BLOCKS, PLAYED, judge_figures, unseen_plays
from slipway_serving.families.matrix_game.keys import VOCABULARIES, actions_of
from slipway_serving.families.matrix_game.request import REQUESTS

# A server that only plays worlds needs no graph of whole videos.
_SHARED = ("image_encoder", "vae_encoder", "vae_decoder")
_EXAMPLES = 6

Videos = list[NDArray[np.uint8]]


class Worlds:
    """Judgement of worlds; see :class:`~slipway_benchmarks.quality.benchmark.Judgement`."""

    precisions = (Precision.FP32, Precision.INT8, Precision.INT4)
    formats: Mapping[str, str] = {"obeyed": ".0%", PSNR: ".1f"}

    def __init__(self, options: MeaningOptions) -> None:
        self.examples: Sequence[Example] = ()
        self._options = options
        self._worlds = PLAYED if options.samples is None else options.samples
        self._reference: dict[str, Videos] = {}

    def exports(self, *, first: bool) -> Sequence[Export]:
        """Return an export for each mode."""
        family, checkpoint = self._options.family, self._options.checkpoint
        return [
            Export(family, checkpoint, {"variant": mode, "components": (mode, *_SHARED)})
            for mode in VOCABULARIES
        ]

    def ways(self, *, first: bool) -> Mapping[str, Measure]:
        """Return the modes in which worlds are played."""
        return {mode: partial(self._measure, mode) for mode in VOCABULARIES}

    def references(self) -> Mapping[str, Figures]:
        """Return how often the judge finds that renders obey their keys."""
        return {"the judge, on renders": {"obeyed": judge_figures()}}

    def _measure(self, mode: str, client: Client, report: Report) -> Figures:
        plays = unseen_plays(mode, self._worlds, PLAY_BLOCKS)
        videos: Videos = []
        for place, play in enumerate(plays):
            report(f"world {place + 1} of {len(plays)}")
            videos.append(played(client, play, seed=place))
        judged = [verdicts(video, mode, play.steps()) for video, play in zip(videos, plays, strict=True)]
        found = {"obeyed": obeyed([verdict for each in judged for verdict in each])}
        reference = self._reference.setdefault(mode, videos)
        if reference is videos:
            shown = _EXAMPLES // len(VOCABULARIES)
            self.examples = [*self.examples, *_examples(plays[:shown], videos)]
        off = median_db(videos, reference)
        return found if off is None else found | {PSNR: off}


def played(client: Client, play: Play, seed: int) -> NDArray[np.uint8]:
    """Play a world on a server from a play's first picture with its keys.

    Args:
        client: Client of the server.
        play: Play with a first picture, and keys that are held for whole blocks.
        seed: Seed of the noise.

    Returns:
        Frames, [frames, height, width, 3], uint8.
    """
    opening: Any = REQUESTS[play.mode](image=play.frames()[0], seed=seed)
    frames = []
    with client.session(opening) as session:
        for block in range(play.blocks):
            row = first_row(block)
            actions = {"keyboard_cond": play.rows.keyboard[row : row + 1]}
            if VOCABULARIES[play.mode].mouse:
                actions["mouse_cond"] = play.rows.mouse[row : row + 1]
            parts = session.step(opening.turn(**actions))
            frames += [np.asarray(part.frames) for part in parts if isinstance(part, FramesPart)]
    return np.concatenate(frames)


def _examples(plays: Sequence[Play], videos: Videos) -> list[Example]:
    return [
        Example(f"{play.mode}: {_script(play)}", video) for play, video in zip(plays, videos, strict=False)
    ]


def _script(play: Play) -> str:
    """Return the keys held in each block."""
    held = []
    for row in map(first_row, range(play.blocks)):
        told = {"keyboard_cond": play.rows.keyboard[row], "mouse_cond": play.rows.mouse[row]}
        for key in VOCABULARIES[play.mode].keys:
            means = actions_of(key, play.mode)
            if all((told[name] == values[0]).all() for name, values in means.items()):
                held.append(key)
                break
    return "".join(held)


def judgement(options: MeaningOptions) -> Worlds:
    """Return the judgement of worlds.

    Raises:
        InvalidRequest: An option belongs to families that denoise by prompts.
    """
    refuse_denoising(options)
    return Worlds(options)
