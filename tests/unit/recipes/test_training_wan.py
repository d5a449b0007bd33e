"""Training of Wan's denoisers: what they see of prompts and noise, what experts share, what is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from torch.nn import functional
from transformers import AutoTokenizer, T5Tokenizer, UMT5Config, UMT5EncoderModel

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.wan_t2v.family import FAMILY
from slipway_export.families.wan_t2v.presets import TEXT_TOKENS, TINY
from slipway_export.families.wan_t2v.random_checkpoint import train_tokenizer
from slipway_export.spec import Loading, Precision
from slipway_loadtests.pictures.captions import caption, examples, plain
from slipway_loadtests.pictures.footage import FRAMES, SIDE_PX
from slipway_loadtests.pictures.scenes import Subject, subjects
from slipway_recipes.fitting import Schedule
from slipway_recipes.flow_matching import Noise, ground_of, weights_of
from slipway_recipes.judges.shapes import Judge, Verdict, judged, load_judge, right, train_judge
from slipway_recipes.recipe import Making
from slipway_recipes.wan_t2v import recipe
from slipway_recipes.wan_t2v.denoisers import Course, PromptedDenoiser, expert_of, train_denoiser
from slipway_recipes.wan_t2v.latents import Encoded, encode_clips
from slipway_recipes.wan_t2v.measures import Sampling, generated, unseen_subjects

SEEN = subjects(unseen=False)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> T5Tokenizer:
    return train_tokenizer(tmp_path_factory.mktemp("words"), examples())


def network() -> PromptedDenoiser:
    torch.manual_seed(0)
    configs = TINY.configs
    return PromptedDenoiser(
        UMT5EncoderModel(UMT5Config(**configs["text_encoder/config.json"])),
        WanTransformer3DModel(**configs["transformer/config.json"]),
    ).eval()


def inputs(tokenizer: T5Tokenizer) -> dict[str, torch.Tensor]:
    tokens = tokenizer(
        ["a red ball turns", "on grass, a ring"], padding="max_length", max_length=12, return_tensors="pt"
    )
    return {
        "latents": torch.randn(2, 16, 2, 4, 4),
        "timestep": torch.tensor([100.0, 900.0]),
        "input_ids": tokens["input_ids"],
        "attention_mask": tokens["attention_mask"],
    }


def test_one_counted_row_equals_all_rows_of_padding(tokenizer: T5Tokenizer) -> None:
    denoiser, given = network(), inputs(tokenizer)
    with torch.no_grad():
        flow = denoiser(**given)
        embeds = denoiser.text_encoder(given["input_ids"], given["attention_mask"]).last_hidden_state
        embeds = embeds * given["attention_mask"][..., None]
        embeds = functional.pad(embeds, (0, 0, 0, TEXT_TOKENS - embeds.shape[1]))
        for block in denoiser.transformer.blocks:
            block.attn2.set_processor(WanAttnProcessor())
        served = denoiser.transformer(given["latents"], given["timestep"], embeds, return_dict=False)[0]
        without = denoiser.transformer(
            given["latents"], given["timestep"], embeds[:, :13], return_dict=False
        )[0]
    torch.testing.assert_close(flow, served, atol=1e-5, rtol=1e-4)
    assert (without - served).abs().max() > 1e-3


def test_noise_stays_within_its_range_and_leans_to_more_with_a_shift() -> None:
    torch.manual_seed(0)
    every, shifted = (Noise(0.0, 1.0, shift).draw(4000) for shift in (1.0, 5.0))
    assert every.mean() == pytest.approx(0.5, abs=0.03)
    # Of 5 s / (1 + 4 s), s even: as many lie above 0.875 as s lies above 7 / 12.
    assert (shifted > 0.875).float().mean() == pytest.approx(5 / 12, abs=0.03)
    high, low = Noise(0.875, 1.0, 5.0).draw(4000), Noise(0.0, 0.875, 3.0).draw(4000)
    assert 0.875 <= high.min() < 0.88 and 0.99 < high.max() <= 1
    assert 0 <= low.min() < 0.01 and 0.86 < low.max() <= 0.875


def test_experts_learn_apart_and_are_told_the_prompt_by_the_same_encoder(
    tmp_path: Path, tokenizer: T5Tokenizer
) -> None:
    latents = np.random.default_rng(0).standard_normal((8, 16, 2, 4, 4)).astype(np.float16)
    clips = Encoded(latents, tuple(SEEN[:8]))
    schedule = Schedule(steps=3, warmup=1, ema=0.0)
    course = Course(schedule, Noise(0.0, 1.0, 3.0), batch=4, compiled=False)
    making = Making(tmp_path, tmp_path / "state", threads=1)
    first = network()
    before = {key: value.clone() for key, value in first.state_dict().items()}
    both = train_denoiser(first, tokenizer, clips, course, making, "denoiser")
    high = replace(course, noise=Noise(0.875, 1.0, 5.0))
    expert = train_denoiser(expert_of(both), tokenizer, clips, high, making, "expert")
    learned, again = both.state_dict(), expert.state_dict()
    assert {key.split(".")[0] for key in learned if not torch.equal(learned[key], before[key])} == {
        "text_encoder",
        "transformer",
    }
    assert {key.split(".")[0] for key in learned if not torch.equal(learned[key], again[key])} == {
        "transformer"
    }


def test_encoding_goes_on_where_it_was_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_recipes.wan_t2v.latents._CHUNK", 2)
    torch.manual_seed(0)
    config: dict[str, Any] = {"base_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
    vae = AutoencoderKLWan(**config).eval()
    said: list[str] = []
    making = Making(tmp_path, tmp_path / "state", threads=1, report=said.append)
    first = encode_clips(vae, SEEN, 3, making)
    (tmp_path / "state/latents/0001.npz").unlink()
    again = encode_clips(vae, SEEN, 3, making)
    assert said == ["latents: 1 of 2 chunks", "latents: 2 of 2 chunks", "latents: 2 of 2 chunks"]
    assert first.latents.shape == (4, 16, 9, 8, 8)
    assert (again.latents == first.latents).all() and again.subjects == first.subjects


def test_tokenizer_keeps_words_whole_and_captions_within_the_length_of_training(
    tokenizer: T5Tokenizer,
) -> None:
    random = np.random.default_rng(0)
    lengths = [len(tokenizer(caption(random, subject))["input_ids"]) for subject in SEEN]
    assert max(lengths) <= 12
    assert (
        tokenizer.unk_token_id
        not in tokenizer(plain(Subject("purple", "star", "turns", "asphalt")))["input_ids"]
    )


def test_judge_learns_and_is_held_against_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_recipes.judges.shapes._SCHEDULE", Schedule(steps=2, warmup=1, ema=0.0))
    judge = train_judge(SEEN, Making(tmp_path, tmp_path / "state", threads=1))
    assert isinstance(judge, Judge)
    verdict = judged(judge, np.zeros((33, 64, 64, 3), np.uint8))
    assert verdict == judged(judge, np.zeros((33, 64, 64, 3), np.uint8))
    asked = [Subject("red", "ball", "turns", "sand"), Subject("blue", "ring", "grows", "snow")]
    said = [Verdict("red", "ball", "grows"), Verdict("blue", "ball", "grows")]
    assert right(asked, said) == {"colour": 1.0, "shape": 0.5, "motion": 0.5, "all": 0.0}


def test_prompts_of_the_measure_are_unseen_and_each_asked_once() -> None:
    asked = unseen_subjects(100)
    assert len(set(asked)) == 100
    assert all(subject.unseen for subject in asked)
    assert asked == unseen_subjects(100)


@pytest.mark.long
def test_recipe_writes_a_checkpoint_that_the_export_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway_recipes.wan_t2v.latents._CHUNK", 2)
    monkeypatch.setattr("slipway_recipes.causal_vae._MEASURED_STEPS", 2)
    monkeypatch.setattr(recipe, "BOTH", replace(recipe.BOTH, batch=2, compiled=False))
    experts = {name: replace(course, batch=2, compiled=False) for name, course in recipe.EXPERTS.items()}
    monkeypatch.setattr(recipe, "EXPERTS", experts)
    making = Making(tmp_path / "made", tmp_path / "state", threads=1, scale=1e-5)
    recipe.make(making)
    checkpoint = Checkpoint(making.output, "made")
    checkpoint.check_layout(FAMILY.layout, FAMILY.name)
    plan = FAMILY.plan(checkpoint, TINY.axes)
    assert {component.name for component in plan.components} == {
        "text_encoder",
        "denoiser_high",
        "denoiser_low",
        "vae_decoder",
    }
    for component in plan.components:
        component.load(Precision.FP32, Loading.READ)
    for part in ("text_encoder", "transformer", "transformer_2", "vae"):
        assert {stored.dtype for stored in checkpoint.stored(part).values()} == {torch.float16}, part
    assert sum(file.stat().st_size for file in making.output.rglob("*") if file.is_file()) < 9e6
    words = AutoTokenizer.from_pretrained(str(making.output / "tokenizer"), local_files_only=True)
    assert words.tokenize("a cyan star turns") == ["▁a", "▁cyan", "▁star", "▁turns"]
    assert words.init_kwargs["do_lower_case"] is True
    video_model = next(model for model in plan.authored if model.name == "wan_t2v")
    assert {"a", "cyan", "star", "turns"} <= {*video_model.words["prompt"]}
    assert load_judge(making.output).state_dict().keys() == Judge().state_dict().keys()
    video = generated(making.output, ["a cyan star turns", "a red ball"], Sampling(steps=2))
    assert video.shape == (2, FRAMES, SIDE_PX, SIDE_PX, 3)
    assert video.dtype == np.uint8 and video[0].std() > 1 and (video[0] != video[1]).any()
    # Once made, it is written again without a step.
    again: list[str] = []
    recipe.make(replace(making, report=again.append))
    assert [line for line in again if "going on" in line] == again


def test_what_moves_counts_more_than_its_ground() -> None:
    clean = torch.linspace(-1, 1, 8).view(1, 1, 1, 8, 1).repeat(1, 4, 3, 1, 8)
    clean[:, :, 1, 2:4, 5] += 2.0
    found = weights_of(clean, ground_of(clean), emphasis=4.0)
    assert found.shape == (1, 1, 3, 8, 8)
    assert found.mean() == pytest.approx(1.0)
    shape = found[0, 0, 1, 2:4, 5]
    assert torch.allclose(shape / found[0, 0, 0, 0, 0], torch.tensor(5.0))
    assert (found == found[0, 0, 0, 0, 0]).sum() == found.numel() - shape.numel()
    assert torch.equal(weights_of(clean, ground_of(clean), emphasis=0.0), torch.ones_like(found))
