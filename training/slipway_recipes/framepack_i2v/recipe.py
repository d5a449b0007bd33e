"""Recipe of the FramePack checkpoint: train VAE, encoders, judge and transformer, then write them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from PIL import Image
from safetensors.torch import save_file
from transformers import AutoTokenizer

from slipway_export.checkpoint.note import FILE as NOTE_FILE
from slipway_export.families.framepack_i2v.presets import DEMO_CONFIGS
from slipway_export.families.framepack_i2v.random_checkpoint import write_settings
from slipway_loadtests.pictures.captions import examples, plain
from slipway_loadtests.pictures.long_footage import LONG
from slipway_loadtests.pictures.scenes import subjects
from slipway_recipes.card import Card
from slipway_recipes.causal_vae import Stage, train_decoder, train_vae
from slipway_recipes.fitting import Schedule
from slipway_recipes.flow_matching import Noise
from slipway_recipes.framepack_i2v.encoders import picture_of, train_clip, train_llama, train_siglip
from slipway_recipes.framepack_i2v.footage import moving, pictures, pieces, tiles
from slipway_recipes.framepack_i2v.latents import Encoders, encode_clips
from slipway_recipes.framepack_i2v.measures import EVERY, figures, rendered, unseen_scenes
from slipway_recipes.framepack_i2v.transformer import Course, train_transformer
from slipway_recipes.judges.shapes import JUDGE_FILE, train_judge
from slipway_recipes.prompt_facts import write_prompt_facts
from slipway_recipes.recipe import Making, Recipe
from slipway_recipes.vae_forms import HUNYUAN_VIDEO

VAE, LLAMA, CLIP, SIGLIP, TRANSFORMER = (
    DEMO_CONFIGS[f"{part}/config.json"]
    for part in ("vae", "text_encoder", "text_encoder_2", "image_encoder", "transformer")
)
FLOW_SHIFT = 3.0
CLIPS = 1536
# Rings keep their shape: of 18 served videos of these three, with three seeds in both orders, all did.
EXAMPLES = (
    "a red ring bounces to the right on asphalt",
    "a blue ring moves down on grass",
    "a yellow ring moves up on stone",
)
LOOKED_THROUGH = 60
NOTE = (
    "This small checkpoint learned coloured shapes. Rings keep their shape. The outlines of all other shapes"
    " wobble as a video goes on, and their corners are lost."
)
PICTURES_SCHEDULE = Schedule(steps=400, learning_rate=2e-3, weight_decay=1e-4)
CLIPS_SCHEDULE = Schedule(steps=3600, learning_rate=1.5e-3, weight_decay=1e-4)
MOVING_SCHEDULE = Schedule(steps=1400, learning_rate=8e-4, warmup=50, weight_decay=1e-4)
TILES_SCHEDULE = Schedule(steps=2400, learning_rate=1.2e-3, warmup=50, weight_decay=1e-4)
# A shape is small beside its ground, and only its outline distinguishes it from other shapes.
SHAPE_EMPHASIS, OUTLINE_EMPHASIS = 6.0, 10.0
COURSE = Course(Schedule(7800, 1.5e-3, warmup=200, ema=0.998), Noise(0.0, 1.0, shift=2.0), emphasis=4.0)


def make(making: Making) -> None:
    """Train the networks, and write the checkpoint in half precision with the judge and examples."""
    making.output.mkdir(parents=True, exist_ok=True)
    seen = subjects(unseen=False)
    stages = (
        Stage("vae_pictures", PICTURES_SCHEDULE, lambda random, step: pictures(random, seen), SHAPE_EMPHASIS),
        Stage("vae_clips", CLIPS_SCHEDULE, lambda random, step: pieces(random, step, seen), SHAPE_EMPHASIS),
        # The last stage trains the outlines of shapes that turn or move.
        Stage("vae", MOVING_SCHEDULE, lambda random, step: moving(random, step, seen), OUTLINE_EMPHASIS),
    )
    vae = train_vae(VAE, stages, making, HUNYUAN_VIDEO)
    last = Stage(
        "vae_decoder", TILES_SCHEDULE, lambda random, step: tiles(random, step, seen), OUTLINE_EMPHASIS
    )
    vae = train_decoder(vae, last, making)
    write_settings(making.output, DEMO_CONFIGS, sentences=examples(), flow_shift=FLOW_SHIFT)
    llama_words, clip_words = (
        AutoTokenizer.from_pretrained(str(making.output / name), local_files_only=True)
        for name in ("tokenizer", "tokenizer_2")
    )
    encoders = Encoders(
        llama=train_llama(LLAMA, llama_words, seen, making),
        clip=train_clip(CLIP, clip_words, seen, making),
        siglip=train_siglip(SIGLIP, seen, making),
        llama_tokenizer=llama_words,
        clip_tokenizer=clip_words,
        picture=picture_of(SIGLIP),
    )
    judge = train_judge(seen, making, LONG, EVERY)
    clips = encode_clips(vae, encoders, seen, making.steps_of(CLIPS), making)
    torch.manual_seed(making.seed)
    first = HunyuanVideoFramepackTransformer3DModel(**TRANSFORMER)
    parts = {
        "vae": vae,
        "text_encoder": encoders.llama,
        "text_encoder_2": encoders.clip,
        "image_encoder": encoders.siglip,
        "transformer": train_transformer(first, clips, COURSE, making),
    }
    for name, part in parts.items():
        part.half().save_pretrained(making.output / name)
        _state(making.output, f"{name}/config.json")
    write_prompt_facts(making.output)
    save_file({key: value.half() for key, value in judge.state_dict().items()}, making.output / JUDGE_FILE)
    write_examples(making.output)


def _state(folder: Path, file: str) -> None:
    """Write the original values into a saved configuration, since newer libraries nest some elsewhere."""
    path = folder / file
    stated = json.loads(path.read_text(encoding="utf-8")) | DEMO_CONFIGS[file]
    path.write_text(json.dumps(stated, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_examples(folder: Path) -> None:
    """Write pictures that no training saw, `picture.txt` with the file name and prompt of each, and the note.

    The pictures show rings, since other shapes lose their outline as a video goes on.
    """
    by_prompt = {plain(scene.subject): scene for scene in unseen_scenes(LOOKED_THROUGH)}
    scenes = [by_prompt[prompt] for prompt in EXAMPLES]
    lines = []
    for number, (scene, frames) in enumerate(zip(scenes, rendered(scenes, 1), strict=True)):
        name = f"picture{number or ''}.png"
        Image.fromarray(frames[0]).save(folder / name)
        lines.append(f"{name}\t{plain(scene.subject)}\n")
    (folder / "picture.txt").write_text("".join(lines), encoding="utf-8")
    (folder / NOTE_FILE).write_text(f"{NOTE}\n", encoding="utf-8")


CARD = Card(
    title="FramePack image-to-video, trained on coloured shapes",
    is_of=(
        "A small checkpoint in the layout of FramePack's pipeline (HunyuanVideo's encoders and VAE, the"
        " transformer with history at three sizes), in half precision. A picture of 64 x 64 pixels and a"
        ' prompt such as "a red ball bounces to the right on grass" become a video of 1 to 4 sections of 36'
        " frames, in either order, for demonstrations and for measures that look at meaning. `picture.txt`"
        " names pictures that lie beside it, with prompts."
    ),
    data=(
        "Clips of 145 frames that a program renders: 8 colours, 5 shapes, 9 motions at one pace each, 6"
        " grounds, with captions in several wordings. An eighth of the combinations of colour, shape and"
        " motion is never drawn."
    ),
    training=(
        "The VAE on pictures, then on pieces of clips (absolute and squared error, a small divergence from"
        " unit noise), at last its decoder alone, on latents with noise; LLaMA, CLIP and SigLIP to tell what"
        " captions say and pictures show; the transformer by flow matching on sections of encoded clips in"
        " both orders, with history that is worn at times. `judge.safetensors` is the classifier of these"
        " figures. Steps, pieces and clips were settled while it trained, so what is made again is like these"
        " weights, not the same."
    ),
    results={
        "judge_all": "the judge on 200 renders of unseen combinations: all words right, share",
        "vae_psnr_db": "the VAE on 16 such renders, PSNR, dB",
        "forward_colour": (
            "24 unseen pictures and prompts, 3 sections of 20 steps, first section first: colour right from"
            " begin to end, share"
        ),
        "forward_shape": "shape right, share",
        "forward_motion": "motion right, share",
        "forward_all": "all of them right, share",
        "inverted_colour": "the same, last section first: colour right, share",
        "inverted_shape": "shape right, share",
        "inverted_motion": "motion right, share",
        "inverted_all": "all of them right, share",
    },
    limits=(
        "Outlines wobble and corners are lost as a video goes on, rings aside; colour, ground and motion"
        " stay. It knows no other words, sizes or paces, one shape at a time, guidance 10, and no more than"
        " four sections."
    ),
)

RECIPE = Recipe(
    family="framepack_i2v",
    summary="a video VAE, encoders and a transformer on rendered clips of coloured shapes in motion",
    hours=2.5,
    make=make,
    measure=figures,
    card=CARD,
)
