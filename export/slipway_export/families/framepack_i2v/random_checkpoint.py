"""Writer of random FramePack checkpoints of any size, with the layout and key names of the public ones.

Weights are streamed (`random_weights`), so that no network is in memory. Configurations are written as in the
public repositories, and the keys of CLIP and SigLIP have the prefixes of an earlier version of transformers.
The tokenizers are made here, LLaMA's from the prompt template; their ids fit into any vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLHunyuanVideo,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideoFramepackTransformer3DModel,
)
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerFast,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from slipway_export.checkpoint.random_weights import Normal, RandomPart, check_space, write_part

_DIFFUSERS_STEM = "diffusion_pytorch_model"
# LLaMA 3 splits a text at these before its merges: contractions, words, up to 3 digits, signs, line ends.
_LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA_SPECIAL = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<pad>",
)  # fmt: skip
_CLIP_WORD_END = "</w>"
_CLIP_SPECIAL = ("<|startoftext|>", "<|endoftext|>")
_MODEL_INDEX = {
    "_class_name": "HunyuanVideoFramepackPipeline",
    "feature_extractor": ["transformers", "SiglipImageProcessor"],
    "image_encoder": ["transformers", "SiglipVisionModel"],
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "LlamaModel"],
    "text_encoder_2": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
    "transformer": ["diffusers", "HunyuanVideoFramepackTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLHunyuanVideo"],
}


def write_checkpoint(
    folder: Path, configs: Mapping[str, Mapping[str, Any]], seed: int | None, *, dtype: str = "float32"
) -> None:
    """Write a checkpoint with all parts in one folder, which diffusers' pipeline can load too.

    Args:
        folder: Folder of the checkpoint; it must exist.
        configs: Configurations by file: of `transformer`, `text_encoder`, `text_encoder_2`, `image_encoder`
            and `vae`.
        seed: Seed of the weights; None writes weight files without content.
        dtype: Type of the weights, by torch's name; those of the VAE are float32.

    Raises:
        InvalidRequest: The disk has too little free space.
    """
    parts = _parts(configs, getattr(torch, dtype))
    if seed is not None:
        check_space(folder, parts)
    for part in parts:
        write_part(folder, part, seed)
    _write_configs(folder, configs, parts, dtype)
    write_settings(folder, configs)


def write_settings(
    folder: Path,
    configs: Mapping[str, Mapping[str, Any]],
    *,
    sentences: Sequence[str] = (),
    flow_shift: float = 7.0,
) -> None:
    """Write a checkpoint's files besides the networks: tokenizers, scheduler, image preprocessor, index.

    Args:
        folder: Folder of the checkpoint; it must exist.
        configs: Configurations as in :func:`write_checkpoint`; only that of `image_encoder` is read.
        sentences: Sentences for whose words both tokenizers get a token.
        flow_shift: Flow shift of the scheduler.
    """
    from slipway_export.families.framepack_i2v.prompt import PROMPT_TEMPLATE

    for name in ("feature_extractor", "tokenizer_2"):
        (folder / name).mkdir(exist_ok=True)
    _write_json(folder / "feature_extractor/preprocessor_config.json", _preprocessor(configs))
    FlowMatchEulerDiscreteScheduler(shift=flow_shift).save_pretrained(folder / "scheduler")
    _llama_tokenizer(PROMPT_TEMPLATE, sentences).save_pretrained(folder / "tokenizer")
    _write_clip_tokenizer(folder / "tokenizer_2", sentences)
    _write_json(folder / "model_index.json", _MODEL_INDEX)


def _parts(configs: Mapping[str, Mapping[str, Any]], dtype: torch.dtype) -> list[RandomPart]:
    """Return the parts of a checkpoint with their networks on the meta device."""

    def config(part: str) -> dict[str, Any]:
        return dict(configs[f"{part}/config.json"])

    with torch.device("meta"):
        transformer = HunyuanVideoFramepackTransformer3DModel.from_config(config("transformer"))
        llama = LlamaModel(LlamaConfig.from_dict(config("text_encoder")))
        clip = CLIPTextModel(CLIPTextConfig.from_dict(config("text_encoder_2")))
        siglip = SiglipVisionModel(SiglipVisionConfig.from_dict(config("image_encoder")))
        vae = AutoencoderKLHunyuanVideo.from_config(config("vae"))
    tables = (("*embed_tokens.weight", Normal()), ("*token_embedding.weight", Normal()))
    return [
        RandomPart("transformer", transformer.to(dtype), _DIFFUSERS_STEM),
        RandomPart("text_encoder", llama.to(dtype), "model", tables),
        RandomPart("text_encoder_2", clip.to(dtype), "model", tables, prefix="text_model."),
        RandomPart("image_encoder", siglip.to(dtype), "model", prefix="vision_model."),
        RandomPart("vae", vae, _DIFFUSERS_STEM),
    ]


def _write_configs(
    folder: Path, configs: Mapping[str, Mapping[str, Any]], parts: list[RandomPart], dtype: str
) -> None:
    """Write the `config.json` of each part."""
    for part in parts:
        network: Any = part.network
        name = type(network).__name__
        stated: dict[str, Any] = {"_class_name": name}
        if part.stem != _DIFFUSERS_STEM:
            kind = network.config.model_type
            stated = {"architectures": [name], "model_type": kind, "torch_dtype": dtype}
        file = f"{part.folder}/config.json"
        _write_json(folder / file, stated | dict(configs[file]))


def _preprocessor(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the configuration of the image preprocessor."""
    side = configs["image_encoder/config.json"]["image_size"]
    return {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "SiglipImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"height": side, "width": side},
    }


def _llama_tokenizer(template: str, sentences: Sequence[str]) -> PreTrainedTokenizerFast:
    """Train a tokenizer that splits the template into as many tokens as the public one does.

    Args:
        template: Template of prompts.
        sentences: Sentences whose words become tokens too.
    """
    begin = _LLAMA_SPECIAL[0]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        min_frequency=1,
        special_tokens=list(_LLAMA_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*[template] * 20, *sentences], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=_LLAMA_SPECIAL[1],
        pad_token=_LLAMA_SPECIAL[-1],
        padding_side="right",
    )


def _write_clip_tokenizer(folder: Path, sentences: Sequence[str]) -> None:
    """Write a CLIP tokenizer with tokens for bytes, bytes that end a word, and the sentences' words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = [*alphabet, *(f"{byte}{_CLIP_WORD_END}" for byte in alphabet)]
    merges = _clip_merges(sentences)
    tokens = dict.fromkeys([*bytes_only, *(first + second for first, second in merges), *_CLIP_SPECIAL])
    _write_json(folder / "vocab.json", {token: i for i, token in enumerate(tokens)})
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    begin, end = _CLIP_SPECIAL
    stated = {"bos_token": begin, "eos_token": end, "pad_token": end, "unk_token": end}
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, **stated}
    _write_json(folder / "tokenizer_config.json", config)
    _write_json(folder / "special_tokens_map.json", stated)


def _clip_merges(sentences: Sequence[str]) -> list[tuple[str, str]]:
    """Return the merges that turn each word of the sentences into a token."""
    if not sentences:
        return []
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix=_CLIP_WORD_END))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=4096, min_frequency=1, end_of_word_suffix=_CLIP_WORD_END, show_progress=False
    )
    tokenizer.train_from_iterator([sentence.lower() for sentence in sentences], trainer)
    return [(first, second) for first, second in json.loads(tokenizer.to_str())["model"]["merges"]]


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
