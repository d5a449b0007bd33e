"""Writer of random Wan checkpoints, with the layout and key names of the public ones.

The `save_pretrained` of diffusers and transformers writes the parts of a small checkpoint, so the layout is
theirs. For a checkpoint too large for memory, they write the configurations, and `random_weights` streams the
weights. The tokenizer is trained here on the few sentences below; its ids fit into any vocabulary.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
)
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel, T5Tokenizer, UMT5Config, UMT5EncoderModel
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from slipway_export.checkpoint.random_weights import Normal, RandomPart, check_space, write_part
from slipway_serving.families.wan_t2v.facts import CHANNELS, FIRST_FRAME, TEXT

SENTENCES = (
    "A serene lake at sunset, mirror-like water, mountains in the distance, warm light.",
    "The quick brown fox jumps over the lazy dog while two cats watch from a wooden fence.",
    "A paper boat sails down a rainy street; neon signs flicker and people hurry past.",
    "Close-up of a hummingbird drinking from a red flower, slow motion, shallow depth of field.",
    "An astronaut rides a horse across the dunes of Mars, dust in the wind, cinematic.",
    "Waves break on black volcanic sand, drone shot, 16 frames per second, 480p, 720p.",
    "Blurred details, subtitles, worst quality, low quality, static, JPEG artefacts, extra fingers.",
)

BOUNDARY_RATIO, IMAGE_BOUNDARY_RATIO = 0.875, 0.9
_DIFFUSERS_STEM = "diffusion_pytorch_model"
_CLIP = "image_encoder"
# Streamed weights get the modulation of `_modulated`.
_MODULATED = (("blocks.*.scale_shift_table", Normal(std=0.7)),)


def write_checkpoint(
    folder: Path,
    configs: Mapping[str, Mapping[str, Any]],
    seed: int,
    *,
    attentive: bool = False,
    conditioning: str = TEXT,
) -> None:
    """Write a checkpoint with two experts, or with one in the form of Wan2.2-TI2V or Wan2.1's image to video.

    Args:
        folder: Folder of the checkpoint; it must exist.
        configs: Configurations by file: of `transformer` (both experts), `text_encoder`, `vae`, and
            `image_encoder` in the form of Wan2.1's image to video.
        seed: Seed of the weights.
        attentive: True if the prompt changes the video, for tests; such sharp attention amplifies rounding
            far more than trained weights do.
        conditioning: Conditioning besides the prompt, of
            :data:`slipway_serving.families.wan_t2v.facts.CONDITIONINGS`.
    """
    shape = _attentive if attentive else _modulated
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        for_images = conditioning == CHANNELS
        clip = configs.get(f"{_CLIP}/config.json")
        one_expert = conditioning == FIRST_FRAME or clip is not None
        ratio = IMAGE_BOUNDARY_RATIO if for_images else BOUNDARY_RATIO
        pipeline = (WanImageToVideoPipeline if for_images else WanPipeline)(
            tokenizer=train_tokenizer(folder),
            text_encoder=UMT5EncoderModel(UMT5Config(**configs["text_encoder/config.json"])),
            transformer=shape(WanTransformer3DModel(**configs["transformer/config.json"])),
            transformer_2=None
            if one_expert
            else shape(WanTransformer3DModel(**configs["transformer/config.json"])),
            vae=spread(AutoencoderKLWan(**configs["vae/config.json"])),
            scheduler=flow_scheduler(5.0 if one_expert else 3.0),
            boundary_ratio=None if one_expert else ratio,
            expand_timesteps=conditioning == FIRST_FRAME,
            **({} if clip is None else {_CLIP: CLIPVisionModel(CLIPVisionConfig(**clip))}),
        )
    finally:
        torch.random.set_rng_state(state)
    pipeline.save_pretrained(folder)
    if clip is not None:
        _write_processor(folder, clip["image_size"])


def name_distilled(folder: Path) -> None:
    """Name FastVideo's pipeline of distilled networks as that of a checkpoint."""
    _change_index(folder, {"_class_name": "WanDMDPipeline"})


def _write_processor(folder: Path, side: int) -> None:
    """Write the configuration of CLIP's image processor."""
    stated = {
        "crop_size": {"height": side, "width": side},
        "do_center_crop": True,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": OPENAI_CLIP_MEAN,
        "image_processor_type": "CLIPImageProcessor",
        "image_std": OPENAI_CLIP_STD,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"shortest_edge": side},
    }
    (folder / "image_processor").mkdir()
    (folder / "image_processor/preprocessor_config.json").write_text(json.dumps(stated, indent=2))
    _change_index(folder, {"image_processor": ["transformers", "CLIPImageProcessor"]})


def _change_index(folder: Path, changed: Mapping[str, Any]) -> None:
    path = folder / "model_index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}, indent=2) + "\n")


def stream_checkpoint(
    folder: Path,
    configs: Mapping[str, Mapping[str, Any]],
    seed: int | None,
    *,
    experts: int = 2,
    conditioning: str = TEXT,
) -> None:
    """Write a checkpoint of any size, a piece of a tensor at a time: denoisers and text encoder in bfloat16.

    Args:
        folder: Folder of the checkpoint; it must exist.
        configs: Configurations as in :func:`write_checkpoint`.
        seed: Seed of the weights; None writes weight files without content.
        experts: Number of experts, 1 or 2.
        conditioning: Conditioning besides the prompt, as in :func:`write_checkpoint`.

    Raises:
        InvalidRequest: The disk has too little free space.
    """
    names = ("transformer", "transformer_2")[:experts]
    text_config = UMT5Config(
        **configs["text_encoder/config.json"], architectures=["UMT5EncoderModel"], dtype=torch.bfloat16
    )
    with torch.device("meta"):
        transformers = {
            name: WanTransformer3DModel(**configs["transformer/config.json"]).to(torch.bfloat16)
            for name in names
        }
        text_encoder = UMT5EncoderModel(text_config).to(torch.bfloat16)
        vae = AutoencoderKLWan(**_with_scale(configs["vae/config.json"]))
    # T5's attention does not divide by the root of a head's width; its query weights are smaller instead.
    queries = Normal(std=(text_config.d_model * text_config.d_kv) ** -0.5)
    text_rules = (("shared.weight", Normal()), ("*.q.weight", queries))
    parts = [
        RandomPart("text_encoder", text_encoder, "model", text_rules),
        *(RandomPart(name, network, _DIFFUSERS_STEM, _MODULATED) for name, network in transformers.items()),
        RandomPart("vae", vae, _DIFFUSERS_STEM),
    ]
    if seed is not None:
        check_space(folder, parts)
    ratio = IMAGE_BOUNDARY_RATIO if conditioning == CHANNELS else BOUNDARY_RATIO
    pipeline = (WanImageToVideoPipeline if conditioning == CHANNELS else WanPipeline)(
        tokenizer=train_tokenizer(folder),
        text_encoder=text_encoder,
        vae=vae,
        scheduler=flow_scheduler(),
        transformer=transformers["transformer"],
        transformer_2=transformers.get("transformer_2"),
        boundary_ratio=ratio if experts == 2 else None,
        expand_timesteps=conditioning == FIRST_FRAME,
    )
    pipeline.save_config(folder)
    pipeline.tokenizer.save_pretrained(folder / "tokenizer")
    pipeline.scheduler.save_pretrained(folder / "scheduler")
    text_config.save_pretrained(folder / "text_encoder")
    for name, network in (*transformers.items(), ("vae", vae)):
        network.save_config(folder / name)
    for part in parts:
        write_part(folder, part, seed)


def _with_scale(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a VAE's configuration with a scale of its latents; diffusers has a default for 16 channels."""
    if config["z_dim"] == 16:
        return dict(config)
    return {"latents_mean": [0.0] * config["z_dim"], "latents_std": [1.0] * config["z_dim"], **config}


def flow_scheduler(flow_shift: float = 3.0) -> UniPCMultistepScheduler:
    """Return the scheduler of the public checkpoints, with a flow shift."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        num_train_timesteps=1000,
        flow_shift=flow_shift,
    )


def train_tokenizer(folder: Path, sentences: Sequence[str] = SENTENCES) -> T5Tokenizer:
    """Train a unigram tokenizer and write its `spiece.model` to the checkpoint's folder `tokenizer`.

    Args:
        folder: Folder of the checkpoint.
        sentences: Sentences with the words and letters that the tokenizer learns.
    """
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*sentences] * 20),
        model_writer=model,
        vocab_size=384,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    (folder / "tokenizer").mkdir(exist_ok=True)
    (folder / "tokenizer" / "spiece.model").write_bytes(model.getvalue())
    return T5Tokenizer(
        vocab=[(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(len(pieces))], extra_ids=0
    )


def _modulated(transformer: WanTransformer3DModel) -> WanTransformer3DModel:
    """Scale the modulation to the order of 1, as in trained weights.

    With fresh random weights a block adds 7 % to the residual stream, so an error inside it would hardly
    show.
    """
    with torch.no_grad():
        for block in transformer.blocks:
            block.scale_shift_table.mul_(0.7 * block.scale_shift_table.shape[-1] ** 0.5)
    return transformer


def _attentive(transformer: WanTransformer3DModel) -> WanTransformer3DModel:
    """Sharpen and strengthen the cross-attention, so that the prompt changes the video.

    With random weights all 512 rows of text get the same attention, and nearly all of them are padding, so a
    comparison would pass with any prompt.
    """
    with torch.no_grad():
        for block in transformer.blocks:
            block.attn2.norm_q.weight.mul_(3.0)
            block.attn2.norm_k.weight.mul_(3.0)
            block.attn2.to_out[0].weight.mul_(8.0)
            if block.attn2.add_k_proj is not None:
                block.attn2.norm_added_k.weight.mul_(3.0)
        embedder = transformer.condition_embedder.image_embedder
        if embedder is not None and embedder.pos_embed is not None:
            embedder.pos_embed.normal_()  # zeros until it is trained
    return transformer


def spread(vae: AutoencoderKLWan) -> AutoencoderKLWan:
    """Scale the last convolution so that decoded noise fills most of the colour range.

    Random weights decode to almost uniform grey, so a comparison of pixels would pass with any error before
    the decoder.
    """
    last = vae.decoder.conv_out
    with torch.no_grad():
        nn.init.zeros_(last.bias)
        pixels = vae.decode(torch.randn(1, vae.config.z_dim, 2, 8, 8) * 2.0, return_dict=False)[0]
        last.weight.mul_(0.5 / pixels.std())
    return vae
