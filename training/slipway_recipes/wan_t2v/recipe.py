"""Recipe of the Wan checkpoint: train VAE, judge, text encoder and denoisers, then write them."""

from __future__ import annotations

import torch
from diffusers import WanPipeline, WanTransformer3DModel
from safetensors.torch import save_file
from torch import nn
from transformers import UMT5Config, UMT5EncoderModel

from slipway_export.families.wan_t2v.presets import DEMO_CONFIGS, EXAMPLE_FILE
from slipway_export.families.wan_t2v.random_checkpoint import (
    BOUNDARY_RATIO,
    SENTENCES,
    flow_scheduler,
    train_tokenizer,
)
from slipway_loadtests.pictures.captions import examples
from slipway_loadtests.pictures.scenes import subjects
from slipway_recipes.card import Card
from slipway_recipes.causal_vae import Stage, train_vae
from slipway_recipes.fitting import Schedule
from slipway_recipes.flow_matching import Noise
from slipway_recipes.judges.shapes import JUDGE_FILE, train_judge
from slipway_recipes.prompt_facts import write_prompt_facts
from slipway_recipes.recipe import Making, Recipe
from slipway_recipes.wan_t2v.denoisers import Course, PromptedDenoiser, expert_of, train_denoiser
from slipway_recipes.wan_t2v.footage import pictures, pieces
from slipway_recipes.wan_t2v.latents import encode_clips
from slipway_recipes.wan_t2v.measures import figures

VAE, TEXT_ENCODER, TRANSFORMER = (
    DEMO_CONFIGS[f"{part}/config.json"] for part in ("vae", "text_encoder", "transformer")
)
FLOW_SHIFT = 5.0
EXAMPLE = "a red ball grows on sand"
CLIPS = 6144
PICTURES_SCHEDULE = Schedule(steps=900, learning_rate=2e-3, weight_decay=1e-4)
CLIPS_SCHEDULE = Schedule(steps=1400, learning_rate=6e-4, weight_decay=1e-4)
# One network trains on all noise levels first, so that both experts know the words.
BOTH = Course(Schedule(12_000, 1.5e-3, warmup=300, ema=0.999), Noise(0.0, 1.0, shift=3.0))
EXPERTS = {
    "transformer": Course(
        Schedule(4000, 8e-4, ema=0.998), Noise(BOUNDARY_RATIO, 1.0, shift=FLOW_SHIFT), emphasis=1.0
    ),
    "transformer_2": Course(
        Schedule(4000, 1e-3, ema=0.998), Noise(0.0, BOUNDARY_RATIO, shift=3.0), emphasis=4.0
    ),
}


def make(making: Making) -> None:
    """Train the networks, and write the checkpoint in half precision, with the judge beside it."""
    making.output.mkdir(parents=True, exist_ok=True)
    seen = subjects(unseen=False)
    stages = (
        Stage("vae_pictures", PICTURES_SCHEDULE, lambda random, step: pictures(random, seen)),
        Stage("vae", CLIPS_SCHEDULE, lambda random, step: pieces(random, step, seen)),
    )
    vae = train_vae(VAE, stages, making)
    judge = train_judge(seen, making)
    clips = encode_clips(vae, seen, making.steps_of(CLIPS), making)
    tokenizer = train_tokenizer(making.output, (*SENTENCES, *examples()))
    torch.manual_seed(making.seed)
    first = PromptedDenoiser(
        UMT5EncoderModel(UMT5Config(**TEXT_ENCODER, dropout_rate=0.0)), WanTransformer3DModel(**TRANSFORMER)
    )
    both = train_denoiser(first, tokenizer, clips, BOTH, making, "denoiser")
    experts = {
        name: train_denoiser(expert_of(both), tokenizer, clips, course, making, name)
        for name, course in EXPERTS.items()
    }
    parts: dict[str, nn.Module] = {"vae": vae, "text_encoder": both.text_encoder} | {
        name: expert.transformer for name, expert in experts.items()
    }
    WanPipeline(
        tokenizer=tokenizer,
        scheduler=flow_scheduler(FLOW_SHIFT),
        boundary_ratio=BOUNDARY_RATIO,
        **{name: part.half() for name, part in parts.items()},
    ).save_pretrained(making.output)
    write_prompt_facts(making.output)
    (making.output / EXAMPLE_FILE).write_text(f"{EXAMPLE}\n", encoding="utf-8")
    save_file({key: value.half() for key, value in judge.state_dict().items()}, making.output / JUDGE_FILE)


CARD = Card(
    title="Wan text-to-video, trained on coloured shapes",
    is_of=(
        "A small checkpoint in the layout of Wan2.2-T2V-A14B-Diffusers, in half precision: a causal video VAE"
        " (8 x 8 pixels and 4 frames a latent, 16 channels), a UMT5 text encoder of 2 layers, and two experts"
        ' of 6 layers of 4 x 32. It makes 33 frames of 64 x 64 pixels of prompts such as "a red ball bounces'
        ' to the right on grass", for demonstrations and for measures that look at meaning.'
    ),
    data=(
        "Clips that a program renders: 8 colours, 5 shapes, 9 motions, 6 grounds, each with a caption in one"
        " of several wordings. An eighth of the combinations of colour, shape and motion is never drawn."
    ),
    training=(
        "The VAE on pictures, then on pieces of clips (absolute and squared error, a small divergence from"
        " unit noise); one denoiser with the text encoder by flow matching on all noise, from which both"
        " experts are trained on their parts of it. `judge.safetensors` is the classifier of these figures."
    ),
    results={
        "judge_all": "the judge on 300 renders of unseen combinations: all words right, share",
        "vae_psnr_db": "the VAE on 32 such renders, PSNR, dB",
        "prompt_colour": "100 prompts of unseen combinations, 20 steps, guidance 4: colour right, share",
        "prompt_shape": "shape right, share",
        "prompt_motion": "motion right, share",
        "prompt_all": "all of them right, share",
    },
    limits="It knows no other words, sizes or lengths, and one shape at a time.",
)

RECIPE = Recipe(
    family="wan_t2v",
    summary="a video VAE, a text encoder and two experts on rendered clips of coloured shapes in motion",
    hours=4.0,
    make=make,
    measure=figures,
    card=CARD,
)
