"""The recipe."""

from __future__ import annotations

from slipway_export.families.framepack_presets import DEMO_CONFIGS
from slipway_training.causal_vae import Stage, train_vae
from slipway_training.fitting import Schedule
from slipway_training.framepack_i2v.footage import pictures, pieces
from slipway_training.recipe import Making
from slipway_training.shapes.scenes import subjects
from slipway_training.vae_forms import HUNYUAN_VIDEO

VAE = DEMO_CONFIGS["vae/config.json"]
PICTURES_SCHEDULE = Schedule(steps=700, learning_rate=2e-3, weight_decay=1e-4)
CLIPS_SCHEDULE = Schedule(steps=2600, learning_rate=1e-3, weight_decay=1e-4)
# A shape is small beside its ground, and what tells it from others is its outline.
_SHAPE_EMPHASIS = 6.0


def make(making: Making) -> None:
    making.output.mkdir(parents=True, exist_ok=True)
    seen = subjects(unseen=False)
    stages = (
        Stage(
            "vae_pictures", PICTURES_SCHEDULE, lambda random, step: pictures(random, seen), _SHAPE_EMPHASIS
        ),
        Stage("vae", CLIPS_SCHEDULE, lambda random, step: pieces(random, step, seen), _SHAPE_EMPHASIS),
    )
    train_vae(VAE, stages, making, HUNYUAN_VIDEO)
