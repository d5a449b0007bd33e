"""`slipway plan` prints the size of a stopped video's state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from diffusers import UniPCMultistepScheduler
from test_sizing import write_configurations

from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.commands.plan_commands import describe_state
from slipway_export.families import family_named
from slipway_export.families.wan_t2v.presets import PUBLIC_AXES
from slipway_export.sizing.states import StateEstimate, estimate_states, inputs_bytes
from slipway_export.spec import Axis

WAN = family_named("wan_t2v")
STATE = StateEstimate("wan_t2v", (1, 16, 21, 60, 104), 8_386_560, 4, 0, 0)


def test_cache_adds_the_inputs_of_both_branches_when_a_public_denoiser_is_cut(tmp_path: Path) -> None:
    write_configurations(tmp_path, "a14b", 2)
    sizes = {"latent_frames": 21, "token_height": 30, "token_width": 52}
    axes = [
        Axis(axis.name, axis.min, sizes.get(axis.name, axis.opt), max(axis.max, sizes.get(axis.name, 0)))
        for axis in PUBLIC_AXES
    ]
    with open_checkpoint(WAN, str(tmp_path), configurations_only=True) as checkpoint:
        plan = WAN.variant("first-block-cache").plan(checkpoint, axes)
    (head,) = (each for each in plan.components if each.label == "denoiser_high/head")
    # The latents are the same in both branches; timestep and embeddings come with each.
    assert inputs_bytes(head) == 8_386_560 + 2 * (4 + 512 * 4096 * 4)


@pytest.mark.parametrize(
    ("cache", "carried", "words"),
    [
        (0, 0, "has 33.5 MB (4 x 8.39 MB of latents [1, 16, 21, 60, 104] and their history)."),
        (25_000_000, 0, "; a first-block cache adds 25 MB."),
        (
            None,
            0,
            "; a first-block cache adds the inputs of a step, whose size is unknown; try --checkpoint.",
        ),
        (0, 10_000_000, "and their history, 10 MB from earlier sections)."),
    ],
)
def test_state_is_described_in_one_sentence(cache: int | None, carried: int, words: str) -> None:
    estimate = StateEstimate("wan_t2v", STATE.latents, STATE.latents_bytes, 4, carried, cache)
    assert words in describe_state(estimate)


def test_states_are_those_of_the_pipelines_that_an_export_placed(tmp_path: Path) -> None:
    facts = {
        "scheduler": {
            "_class_name": "UniPCMultistepScheduler",
            **UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True).config,
        },
        "boundary_ratio": None,
        "latent_channels": 16,
        "vae_scale_factor_spatial": 8,
        "vae_scale_factor_temporal": 4,
        "patch_size": [1, 2, 2],
        "text_tokens": 12,
        "axes": {"latent_frames": [1, 21, 21], "token_height": [2, 30, 45], "token_width": [2, 52, 80]},
        "latent_rgb": {"weight": [[0.1, 0.0, -0.1]] * 16, "bias": [0.0, 0.5, 0.0]},
        "models": {"prompt": "p", "denoiser_high": "h", "denoiser_low": None, "vae_decoder": "d"},
    }
    # A pipeline without a manifest was not placed by an export.
    for name in ("wan_t2v", "strange"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1/pipeline.json").write_text(json.dumps(facts))
    (tmp_path / "wan_t2v/manifest.json").write_text(json.dumps({"family": "wan_t2v"}))
    assert estimate_states(tmp_path, []) == [STATE]
    assert STATE.state_bytes == 4 * 8_386_560
