"""Training of the prompt and picture encoders as classifiers of what their input says or shows.

The classification layers are discarded. The transformer then learns from the frozen encoders' outputs, as
with the public encoders, which are not trained with it either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerBase,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from slipway_export.families.framepack_i2v.encoder_networks import SKIPPED_LAYERS
from slipway_export.families.framepack_i2v.prompt import CROP_START, PROMPT_TEMPLATE
from slipway_loadtests.pictures.captions import caption
from slipway_loadtests.pictures.footage import SIDE_PX
from slipway_loadtests.pictures.long_footage import LONG
from slipway_loadtests.pictures.render import render
from slipway_loadtests.pictures.scenes import COLOURS, GROUNDS, MOTIONS, SHAPES, Subject
from slipway_recipes.fitting import Schedule, fit
from slipway_recipes.recipe import Making
from slipway_serving.families.framepack_i2v.facts import Picture
from slipway_serving.families.framepack_i2v.picture import to_image_encoder_input

# Tokens of a caption, with the end token and padding.
TOKENS = 12
_WORDS: Mapping[str, Sequence[str]] = {
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "motion": MOTIONS,
    # A caption may omit the ground.
    "ground": (*GROUNDS, ""),
}
_SHOWN = ("colour", "shape", "ground")
_BATCH = 32
_TEXT_SCHEDULE = Schedule(steps=300, learning_rate=3e-3, warmup=30, ema=0.98)
_PICTURE_SCHEDULE = Schedule(steps=800, learning_rate=2e-3, warmup=50, ema=0.99)


@dataclass(frozen=True)
class PromptEmbeddings:
    """Embeddings of prompts as the transformer takes them.

    Args:
        hidden: Hidden states of LLaMA, [batch, `TOKENS`, width].
        mask: Attention mask, 1 for text, [batch, `TOKENS`].
        pooled: Pooled output of CLIP, [batch, width].
    """

    hidden: Tensor
    mask: Tensor
    pooled: Tensor


class _Teller(nn.Module):
    """Encoder with a linear head for each attribute that it learns to predict."""

    def __init__(self, encoder: nn.Module, width: int, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict({name: nn.Linear(width, size) for name, size in sizes.items()})

    def forward(self, encode: Callable[[nn.Module], Tensor]) -> dict[str, Tensor]:
        """Return the scores of each attribute; `encode` gives one vector for each row of the batch."""
        found = encode(self.encoder)
        return {name: head(found) for name, head in self.heads.items()}


def llama_hidden(
    llama: nn.Module, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> PromptEmbeddings:
    """Return the LLaMA states that the transformer sees; `pooled` is their mean over the text."""
    asked = [PROMPT_TEMPLATE.replace("{}", text) for text in texts]
    length = CROP_START + TOKENS
    tokens = tokenizer(asked, padding="max_length", max_length=length, return_tensors="pt")
    device = next(llama.parameters()).device
    states = llama(
        input_ids=tokens["input_ids"].to(device),
        attention_mask=tokens["attention_mask"].to(device),
        output_hidden_states=True,
        use_cache=False,
    ).hidden_states
    hidden = states[-(SKIPPED_LAYERS + 1)][:, CROP_START:]
    mask = tokens["attention_mask"][:, CROP_START:].to(device)
    counted = mask[..., None].float()
    return PromptEmbeddings(hidden, mask, (hidden * counted).sum(dim=1) / counted.sum(dim=1))


def clip_pooled(clip: nn.Module, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Tensor:
    """Return CLIP's pooled outputs of texts, [batch, width]."""
    # The pooled output comes from a token before the padding, so the length of the padding changes nothing.
    tokens = tokenizer(list(texts), padding=True, return_tensors="pt")["input_ids"]
    pooled: Tensor = clip(tokens.to(next(clip.parameters()).device)).pooler_output
    return pooled


def siglip_states(siglip: nn.Module, pictures: Sequence[NDArray[np.uint8]], picture: Picture) -> Tensor:
    """Return SigLIP's last hidden states of pictures [height, width, 3], [batch, patches, width]."""
    pixels = np.concatenate([to_image_encoder_input(pixels, picture) for pixels in pictures])
    states: Tensor = siglip(torch.from_numpy(pixels).to(next(siglip.parameters()).device)).last_hidden_state
    return states


def picture_of(config: Mapping[str, Any]) -> Picture:
    """Return the picture preprocessing of an image encoder that this recipe trains."""
    half = (0.5, 0.5, 0.5)
    return Picture(side_px=config["image_size"], mean=half, std=half, resample=3)


def train_llama(
    config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, choice: Sequence[Subject], making: Making
) -> LlamaModel:
    """Train LLaMA to predict a caption's attributes from the states that the transformer sees."""
    torch.manual_seed(making.seed)
    network = LlamaModel(LlamaConfig.from_dict(dict(config)))

    def encode(llama: nn.Module, texts: Sequence[str]) -> Tensor:
        return llama_hidden(llama, tokenizer, texts).pooled

    trained = _train_text(network, config["hidden_size"], encode, choice, making, "text_encoder")
    assert isinstance(trained, LlamaModel)
    return trained


def train_clip(
    config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, choice: Sequence[Subject], making: Making
) -> CLIPTextModel:
    """Train CLIP to predict a caption's attributes from the pooled output that the transformer sees."""
    torch.manual_seed(making.seed)
    network = CLIPTextModel(CLIPTextConfig.from_dict(dict(config)))

    def encode(clip: nn.Module, texts: Sequence[str]) -> Tensor:
        return clip_pooled(clip, tokenizer, texts)

    trained = _train_text(network, config["hidden_size"], encode, choice, making, "text_encoder_2")
    assert isinstance(trained, CLIPTextModel)
    return trained


def _train_text(
    network: nn.Module,
    width: int,
    encode: Callable[[nn.Module, Sequence[str]], Tensor],
    choice: Sequence[Subject],
    making: Making,
    name: str,
) -> nn.Module:
    def loss(teller: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng([making.seed, step])
        subjects = [choice[place] for place in random.integers(len(choice), size=_BATCH)]
        texts = [caption(random, subject) for subject in subjects]
        scores = teller(lambda encoder: encode(encoder, texts))
        true = {
            field: [
                words.index(word if (word := getattr(subject, field)) in text or field != "ground" else "")
                for subject, text in zip(subjects, texts, strict=True)
            ]
            for field, words in _WORDS.items()
        }
        return _cross_entropy(scores, true)

    teller = _Teller(network, width, {field: len(words) for field, words in _WORDS.items()})
    trained = fit(teller, loss, _TEXT_SCHEDULE, making, name)
    assert isinstance(trained, _Teller)
    return trained.encoder


def train_siglip(config: Mapping[str, Any], choice: Sequence[Subject], making: Making) -> SiglipVisionModel:
    """Train SigLIP to predict a picture's subject and place from the states that the transformer sees."""
    torch.manual_seed(making.seed)
    picture = picture_of(config)

    def loss(teller: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng([making.seed, step])
        scenes = [LONG.scene(random, choice) for _ in range(_BATCH)]
        pictures = [render(scene, range(1), SIDE_PX)[0] for scene in scenes]
        scores = teller(lambda encoder: siglip_states(encoder, pictures, picture).mean(dim=1))
        places = torch.tensor([(*scene.start, scene.radius * scene.sizes[0]) for scene in scenes])
        where = scores.pop("place")
        off = functional.mse_loss(where, places.to(where.device))
        true = {
            field: [_WORDS[field].index(getattr(scene.subject, field)) for scene in scenes]
            for field in _SHOWN
        }
        # Places are shares of the side: a squared error of 1 / 400 is 3 px.
        return _cross_entropy(scores, true) + 20 * off

    sizes = {field: len(_WORDS[field]) for field in _SHOWN} | {"place": 3}
    network = SiglipVisionModel(SiglipVisionConfig.from_dict(dict(config)))
    teller = _Teller(network, config["hidden_size"], sizes)
    trained = fit(teller, loss, _PICTURE_SCHEDULE, making, "image_encoder")
    assert isinstance(trained, _Teller) and isinstance(trained.encoder, SiglipVisionModel)
    return trained.encoder


def _cross_entropy(scores: Mapping[str, Tensor], true: Mapping[str, Sequence[int]]) -> Tensor:
    """Return the sum of the cross-entropies of all attributes."""
    found = [
        functional.cross_entropy(scores[field], torch.tensor(places, device=scores[field].device))
        for field, places in true.items()
    ]
    return torch.stack(found).sum()
