"""Training of FramePack: what a section sees, what the encoders give, and what the recipe writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackTransformer3DModel
from numpy.typing import NDArray
from transformers import AutoTokenizer, CLIPTextModel, LlamaModel, PreTrainedTokenizerBase, SiglipVisionModel

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.framepack_i2v.encoder_networks import ClipText, LlamaText
from slipway_export.families.framepack_i2v.family import FAMILY
from slipway_export.families.framepack_i2v.presets import DEMO_CONFIGS, TINY
from slipway_export.families.framepack_i2v.prompt import CROP_START, PROMPT_TEMPLATE
from slipway_export.families.framepack_i2v.random_checkpoint import write_settings
from slipway_export.spec import Loading, Precision
from slipway_loadtests.pictures.captions import caption, examples, plain
from slipway_loadtests.pictures.footage import SIDE_PX
from slipway_loadtests.pictures.long_footage import FRAMES, LATENT_FRAMES, LONG, SECTIONS
from slipway_loadtests.pictures.scenes import MOTIONS, Subject, subjects
from slipway_recipes.causal_vae import WholeClips
from slipway_recipes.fitting import Schedule
from slipway_recipes.flow_matching import Noise
from slipway_recipes.framepack_i2v import recipe
from slipway_recipes.framepack_i2v.encoders import (
    TOKENS,
    PromptEmbeddings,
    clip_pooled,
    llama_hidden,
    picture_of,
    train_clip,
    train_llama,
    train_siglip,
)
from slipway_recipes.framepack_i2v.latents import Encoded, Encoders, encode_clips, encoded
from slipway_recipes.framepack_i2v.measures import (
    EVERY,
    Sampling,
    generated,
    rendered,
    unseen_scenes,
    video_figures,
)
from slipway_recipes.framepack_i2v.sections import SIZES, Section, own_latents, random_section, surroundings
from slipway_recipes.framepack_i2v.transformer import Course, train_transformer
from slipway_recipes.judges.shapes import Judge, load_judge
from slipway_recipes.recipe import Making
from slipway_serving.families.framepack_i2v.sections import Forward, Inverted, Sections

SEEN = subjects(unseen=False)
ORDERS = pytest.mark.parametrize("order", [Forward, Inverted])
SMALL_VAE = {
    "latent_channels": 4,
    "block_out_channels": [4, 4, 4, 4],
    "layers_per_block": 1,
    "norm_num_groups": 1,
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> list[PreTrainedTokenizerBase]:
    folder = tmp_path_factory.mktemp("words")
    write_settings(folder, DEMO_CONFIGS, sentences=examples())
    return [
        AutoTokenizer.from_pretrained(str(folder / name), local_files_only=True)
        for name in ("tokenizer", "tokenizer_2")
    ]


@pytest.fixture(scope="module")
def encoders(tokenizers: list[PreTrainedTokenizerBase], tmp_path_factory: pytest.TempPathFactory) -> Encoders:
    folder = tmp_path_factory.mktemp("encoders")
    making = Making(folder, folder / "state", threads=1, scale=1e-5)
    llama, clip = tokenizers
    return Encoders(
        llama=train_llama(recipe.LLAMA, llama, SEEN, making),
        clip=train_clip(recipe.CLIP, clip, SEEN, making),
        siglip=train_siglip(recipe.SIGLIP, SEEN, making),
        llama_tokenizer=llama,
        clip_tokenizer=clip,
        picture=picture_of(recipe.SIGLIP),
    )


def some_latents() -> torch.Tensor:
    return torch.from_numpy(
        np.random.default_rng(0).standard_normal((2, 16, LATENT_FRAMES, 4, 4)).astype(np.float32)
    )


@ORDERS
@pytest.mark.parametrize("count", [1, 2, SECTIONS])
def test_a_section_sees_in_training_what_it_sees_in_serving(order: type[Sections], count: int) -> None:
    latents = some_latents()
    video = order(latents[:, :, :1].numpy(), count, SIZES)
    for made in range(count):
        section = Section(order, count, made)
        trained = surroundings(latents, section, worn=False)
        served = video.conditions()
        assert trained.keys() == served.keys()
        for name, value in served.items():
            np.testing.assert_array_equal(trained[name].numpy(), value, err_msg=f"{made}: {name}")
        video.window(own_latents(latents, section).numpy())
        video.finished += 1


@ORDERS
def test_sections_of_a_video_are_all_its_latents_but_the_picture_s(order: type[Sections]) -> None:
    latents = some_latents()
    parts = [own_latents(latents, Section(order, SECTIONS, made)) for made in range(SECTIONS)]
    in_time = parts if order is Forward else parts[::-1]
    assert torch.equal(torch.cat(in_time, dim=2), latents[:, :, 1:])


def test_drawn_sections_are_of_both_orders_and_every_place() -> None:
    random = np.random.default_rng(0)
    drawn = {random_section(random) for _ in range(400)}
    forward = {Section(Forward, SECTIONS, made) for made in range(SECTIONS)}
    inverted = {Section(Inverted, n, made) for n in range(1, SECTIONS + 1) for made in range(n)}
    assert drawn == forward | inverted


def test_history_is_worn_and_the_picture_is_not() -> None:
    torch.manual_seed(0)
    latents = some_latents().repeat(8, 1, 1, 1, 1)
    section = Section(Forward, SECTIONS, 2)
    clean, worn = (surroundings(latents, section, worn=worn) for worn in (False, True))
    assert torch.equal(clean["latents_clean"][:, :, :1], worn["latents_clean"][:, :, :1])
    off = (clean["latents_clean"] - worn["latents_clean"])[:, :, 1].square().mean(dim=(1, 2, 3)).sqrt()
    assert 0 < (off == 0).sum() < len(off) and off.max() < 1
    first = Section(Forward, SECTIONS, 0)
    whole, touched = (surroundings(latents, first, worn=worn) for worn in (False, True))
    assert all(torch.equal(whole[name], touched[name]) for name in whole)


@pytest.mark.parametrize("motion", MOTIONS)
def test_a_motion_goes_on_through_every_section_at_one_pace(motion: str) -> None:
    choice = [subject for subject in SEEN if subject.motion == motion]
    scenes = [LONG.scene(np.random.default_rng(seed), choice) for seed in range(3)]
    paces = [(*scene.velocity, scene.spin_rad, scene.sizes, scene.hop_frames) for scene in scenes]
    assert paces.count(paces[0]) == len(paces)
    clip = rendered(scenes[:1], FRAMES)[0].astype(np.float32)
    begins = clip[:: SIZES.step]
    assert all(np.abs(one - other).max() > 40 for one, other in pairwise(begins))


def test_tokenizers_know_words_and_keep_the_template_s_length(
    tokenizers: list[PreTrainedTokenizerBase],
) -> None:
    llama, clip = tokenizers
    random = np.random.default_rng(0)
    texts = [caption(random, subject) for subject in SEEN]
    asked = [PROMPT_TEMPLATE.replace("{}", text) for text in texts]
    template = llama(PROMPT_TEMPLATE.split("{}")[0])["input_ids"]
    assert len(template) == CROP_START
    assert all(ids[:CROP_START] == template for ids in llama(asked)["input_ids"])
    assert max(map(len, llama(asked)["input_ids"])) <= CROP_START + TOKENS
    words = plain(Subject("purple", "star", "turns", "asphalt"))
    assert clip.tokenize(words) == [f"{word}</w>" for word in words.split()]
    assert clip.tokenize("other") != ["other</w>"]
    assert len(llama) <= DEMO_CONFIGS["text_encoder/config.json"]["vocab_size"]
    assert len(clip) <= DEMO_CONFIGS["text_encoder_2/config.json"]["vocab_size"]
    assert clip.eos_token_id == len(clip) - 1


def test_encoders_give_in_training_what_they_give_in_serving(encoders: Encoders) -> None:
    assert isinstance(encoders.llama, LlamaModel) and isinstance(encoders.clip, CLIPTextModel)
    texts = ["a red ball turns", "on grass, a ring"]
    told = encoders.told(texts)
    asked = [PROMPT_TEMPLATE.replace("{}", text) for text in texts]
    rows = encoders.llama_tokenizer(asked)["input_ids"]
    long = encoders.clip_tokenizer(texts, padding="max_length", max_length=77, return_tensors="pt")
    with torch.no_grad():
        pooled = ClipText(encoders.clip)(long["input_ids"])
        served = LlamaText(LlamaModel(encoders.llama.config)).eval()
        served.llama.load_state_dict(encoders.llama.state_dict(), strict=False)
        for row, ids in enumerate(rows):
            tokens = torch.tensor([ids])
            hidden = served(tokens, torch.ones_like(tokens))[0, CROP_START:]
            assert told.mask[row].sum() == len(hidden)
            torch.testing.assert_close(told.hidden[row, : len(hidden)], hidden, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(told.pooled, pooled, atol=1e-5, rtol=1e-4)


@pytest.mark.long
def test_encoders_learn_what_is_said_and_shown(
    tokenizers: list[PreTrainedTokenizerBase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = "slipway_recipes.framepack_i2v.encoders"
    schedule = Schedule(steps=200, learning_rate=3e-3, warmup=1, ema=0.0)
    monkeypatch.setattr(f"{where}._TEXT_SCHEDULE", schedule)
    monkeypatch.setattr(f"{where}._PICTURE_SCHEDULE", schedule)
    monkeypatch.setattr(f"{where}._BATCH", 16)
    said: list[str] = []
    making = Making(tmp_path, tmp_path / "state", threads=1, report=said.append)
    train_clip(recipe.CLIP, tokenizers[1], SEEN, making)
    train_siglip(recipe.SIGLIP, SEEN, making)
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in said]
    # By chance: ln 8 + ln 5 + ln 9 + ln 7 of a caption, ln 8 + ln 5 + ln 6 and its place of a picture.
    assert losses[1] < 3.0 and losses[3] < 5.0


@pytest.mark.long
def test_a_clip_s_first_latent_frame_is_its_picture_s_and_encoding_goes_on_where_it_was_ended(
    encoders: Encoders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway_recipes.framepack_i2v.latents._CHUNK", 2)
    torch.manual_seed(0)
    vae = AutoencoderKLHunyuanVideo(**SMALL_VAE, scaling_factor=2.0).eval()
    scene = LONG.scene(np.random.default_rng(0), SEEN)
    latents = encoded(WholeClips(vae), scene)
    pixels = torch.from_numpy(rendered([scene], 1)).permute(0, 4, 1, 2, 3).float() / 127.5 - 1
    with torch.no_grad():
        alone = 2 * vae.encode(pixels).latent_dist.mode()
    assert latents.shape == (4, LATENT_FRAMES, 8, 8)
    np.testing.assert_allclose(latents[:, :1], alone[0], atol=0.05, rtol=0.05)
    said: list[str] = []
    making = Making(tmp_path, tmp_path / "state", threads=1, report=said.append)
    first = encode_clips(vae, encoders, SEEN, 3, making)
    (tmp_path / "state/latents/0001.npz").unlink()
    again = encode_clips(vae, encoders, SEEN, 3, making)
    assert said == ["latents: 1 of 2 chunks", "latents: 2 of 2 chunks", "latents: 2 of 2 chunks"]
    assert (again.latents == first.latents).all()
    assert torch.equal(again.told.hidden, first.told.hidden)
    drawn = first.draw(np.random.default_rng(0), 5)
    assert drawn.latents.shape == (5, 4, LATENT_FRAMES, 8, 8)
    assert drawn.told.hidden.shape[:2] == (5, TOKENS) and len(drawn.image_embeds) == 5


def test_transformer_learns(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = TINY.configs["transformer/config.json"]
    network = HunyuanVideoFramepackTransformer3DModel(**config)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    told = PromptEmbeddings(
        torch.randn(6, TOKENS, 32), torch.ones(6, TOKENS, dtype=torch.int64), torch.randn(6, 24)
    )
    clips = Encoded(some_latents().half().numpy(), told, torch.randn(2, 16, 40))
    course = Course(Schedule(steps=3, warmup=1, ema=0.0), Noise(0.0, 1.0, 2.0), emphasis=4.0, batch=2)
    trained = train_transformer(network, clips, course, Making(tmp_path, tmp_path / "state", threads=1))
    after = trained.state_dict()
    changed = {key.split(".")[0] for key in after if not torch.equal(after[key], before[key])}
    assert changed == {key.split(".")[0] for key in before}


def test_a_video_counts_only_if_begin_and_end_show_the_word(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = unseen_scenes(2)
    assert all(scene.subject.unseen for scene in scenes)
    videos = list(rendered(scenes, 3 * SIZES.step + 1))
    monkeypatch.setattr("slipway_recipes.framepack_i2v.measures.judged", _brightness_judge)
    whole = video_figures(Judge(), scenes, videos)
    assert whole["colour"] == 1.0
    videos[0][-8 * EVERY - 1 :] = 0
    assert video_figures(Judge(), scenes, videos)["colour"] == 0.5


def _brightness_judge(judge: Judge, clip: NDArray[np.uint8], every: int) -> Subject:
    """Say what the first of the unseen scenes with this ground is; of a dark clip, nothing."""
    if clip[-1].max() == 0:
        return Subject("", "", "", "")
    firsts = {int(rendered([scene], 1)[0, 0, 0, 0].sum()): scene.subject for scene in unseen_scenes(2)}
    return firsts[int(clip[0, 0, 0].sum())]


@pytest.mark.long
def test_recipe_writes_a_checkpoint_that_the_export_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway_recipes.framepack_i2v.latents._CHUNK", 2)
    monkeypatch.setattr("slipway_recipes.causal_vae._MEASURED_STEPS", 2)
    monkeypatch.setattr(recipe, "COURSE", replace(recipe.COURSE, batch=2))
    making = Making(tmp_path / "made", tmp_path / "state", threads=1, scale=1e-5)
    recipe.make(making)
    checkpoint = Checkpoint(making.output, "made")
    checkpoint.check_layout(FAMILY.layout, FAMILY.name)
    assert axes_of(FAMILY, checkpoint, {}) == FAMILY.presets["demo"].axes
    plan = FAMILY.plan(checkpoint, TINY.axes)
    assert {component.name for component in plan.components} == {
        "transformer",
        "llama_text",
        "clip_text",
        "siglip_image",
        "vae_encoder",
        "vae_decoder",
    }
    for component in plan.components:
        component.load(Precision.FP32, Loading.READ)
    for part in ("transformer", "text_encoder", "text_encoder_2", "image_encoder", "vae"):
        assert {stored.dtype for stored in checkpoint.stored(part).values()} == {torch.float16}, part
    assert sum(file.stat().st_size for file in making.output.rglob("*") if file.is_file()) < 6.5e6
    assert load_judge(making.output).state_dict().keys() == Judge().state_dict().keys()
    _check_examples(making.output)
    _check_videos(making.output)
    # Once made, it is written again without a step.
    again: list[str] = []
    recipe.make(replace(making, report=again.append))
    assert [line for line in again if "going on" in line] == again


def _check_examples(folder: Path) -> None:
    lines = (folder / "picture.txt").read_text().splitlines()
    named = dict(line.split("\t") for line in lines)
    assert all((folder / name).is_file() for name in named)
    assert tuple(named.values()) == recipe.EXAMPLES
    assert "corners" in (folder / "note.txt").read_text()


def _check_videos(folder: Path) -> None:
    scenes = unseen_scenes(2)
    videos: list[Sequence[NDArray[np.uint8]]] = [
        generated(folder, scenes, order, Sampling(sections=2, steps=1)) for order in ("forward", "inverted")
    ]
    for video in (each for order in videos for each in order):
        assert video.shape == (2 * SIZES.step + 1, SIDE_PX, SIDE_PX, 3) and video.dtype == np.uint8
    assert (videos[0][0] != videos[1][0]).any() and (videos[0][0] != videos[0][1]).any()


def test_a_picture_s_encoder_sees_it_as_serving_prepares_it(encoders: Encoders) -> None:
    assert isinstance(encoders.siglip, SiglipVisionModel)
    pictures = list(rendered(unseen_scenes(2), 1)[:, 0])
    states = encoders.shown(pictures)
    side = DEMO_CONFIGS["image_encoder/config.json"]["image_size"] // 14
    assert states.shape == (2, side**2, DEMO_CONFIGS["image_encoder/config.json"]["hidden_size"])
    assert torch.isfinite(states).all() and (states[0] != states[1]).any()
    with torch.no_grad():
        told = llama_hidden(encoders.llama, encoders.llama_tokenizer, ["a red ball"])
        pooled = clip_pooled(encoders.clip, encoders.clip_tokenizer, ["a red ball"])
    assert told.hidden.shape == (1, TOKENS, 48) and pooled.shape == (1, 48)
