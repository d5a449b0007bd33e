"""Networks of a Wan checkpoint in the form of graphs: named tensors in, plain tensors out.

The text encoder and the denoiser are those of transformers and diffusers, with float32 inputs and outputs in
every precision of their weights. The VAE decoder is cut into two graphs: diffusers loops over latent frames
in Python and keeps the caches between frames in a list. Here the caches are explicit tensors, so one frame is
one graph call and any number of frames is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify
from diffusers.models.transformers.transformer_wan import WanAttention
from torch import Tensor, nn
from transformers import CLIPVisionModel, UMT5EncoderModel

from slipway_export.families.wan_t2v.presets import TEXT_TOKENS
from slipway_export.graph.lowering import rotate


class TextEncoder(nn.Module):
    """UMT5 encoder, which maps token ids to hidden states."""

    def __init__(self, encoder: UMT5EncoderModel) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode a prompt.

        Args:
            input_ids: Token ids, [batch, tokens], int64.
            attention_mask: Mask of the tokens, [batch, tokens], int64, 1 for tokens and 0 for padding.

        Returns:
            Last hidden state, [batch, tokens, d_model], float32.
        """
        hidden: Tensor = self.encoder(input_ids, attention_mask).last_hidden_state
        return hidden.float()


class ClipImage(nn.Module):
    """CLIP's image encoder up to its penultimate block; the class token comes first in the output."""

    def __init__(self, clip: CLIPVisionModel) -> None:
        super().__init__()
        self.clip = clip
        # The output does not depend on the last block and the norm after it.
        del clip.encoder.layers[-1], clip.post_layernorm

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Encode pictures.

        Args:
            pixel_values: Pictures, [batch, 3, side, side], float32, resized, cropped and normalized as the
                checkpoint's `image_processor` specifies.

        Returns:
            Hidden states, [batch, 1 + patches, hidden_size], float32: 257 of 1280 for ViT-H/14.
        """
        dtype = self.clip.embeddings.patch_embedding.weight.dtype
        hidden = self.clip.pre_layrnorm(self.clip.embeddings(pixel_values.to(dtype)))
        states: Tensor = self.clip.encoder(inputs_embeds=hidden).last_hidden_state
        return states.float()


class Denoiser(nn.Module):
    """Wan transformer, which maps noisy latents to the predicted flow."""

    def __init__(self, transformer: WanTransformer3DModel) -> None:
        super().__init__()
        self.transformer = transformer
        if transformer.patch_embedding.weight.dtype is not torch.float32:
            _keep_sensitive_in_float32(transformer)

    def forward(self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        """Predict the flow of a batch of latents.

        Args:
            hidden_states: Noisy latents, [batch, channels, latent_frames, height / 8, width / 8], float32.
            timestep: Timesteps, [batch], float32, 0 to 1000.
            encoder_hidden_states: Embeddings of the prompt, [batch, 512, text_dim], float32.

        Returns:
            Flow, same shape and dtype as `hidden_states`.
        """
        dtype = self.transformer.patch_embedding.weight.dtype
        # The text is not converted, since its embedder is float32 in every precision.
        sample: Tensor = self.transformer(
            hidden_states.to(dtype), timestep, encoder_hidden_states, return_dict=False
        )[0]
        return sample.float()


class FrameTimestepDenoiser(Denoiser):
    """Wan transformer of Wan2.2-TI2V, where each token has a timestep: that of its latent frame."""

    def forward(self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        """Predict the flow of a batch of latents.

        Args:
            hidden_states: Noisy latents, [batch, channels, latent_frames, height / 16, width / 16], float32.
            timestep: Timestep of each latent frame, [batch, latent_frames], float32, 0 to 1000.
            encoder_hidden_states: Embeddings of the prompt, [batch, 512, text_dim], float32.

        Returns:
            Flow, same shape and dtype as `hidden_states`.
        """
        _, rows, columns = self.transformer.config.patch_size
        tokens = (hidden_states.shape[3] // rows) * (hidden_states.shape[4] // columns)
        of_tokens = timestep.unsqueeze(2).expand(-1, -1, tokens).flatten(1)
        return super().forward(hidden_states, of_tokens, encoder_hidden_states)


class PictureDenoiser(Denoiser):
    """Wan transformer of Wan2.1's image to video, which sees the CLIP embeddings of one or two pictures."""

    def __init__(self, transformer: WanTransformer3DModel, pictures: int) -> None:
        super().__init__(transformer)
        self.pictures = pictures

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_image: Tensor,
    ) -> Tensor:
        """Predict the flow of a batch of latents.

        Args:
            hidden_states: Noisy latents and further channels, [batch, channels, latent_frames, height / 8,
                width / 8], float32.
            timestep: Timesteps, [batch], float32, 0 to 1000.
            encoder_hidden_states: Embeddings of the prompt, [batch, 512, text_dim], float32.
            encoder_hidden_states_image: Embeddings of the pictures one after the other, [batch, pictures *
                257, image_dim], float32.

        Returns:
            Flow, [batch, channels of the latents, latent_frames, height / 8, width / 8], float32.
        """
        # diffusers has a row for each picture, and its embedder joins the rows of two.
        batch, tokens, width = encoder_hidden_states_image.shape
        rows = (batch * self.pictures, tokens // self.pictures, width)
        pictures = encoder_hidden_states_image.reshape(rows)
        dtype = self.transformer.patch_embedding.weight.dtype
        sample: Tensor = self.transformer(
            hidden_states.to(dtype), timestep, encoder_hidden_states, pictures, return_dict=False
        )[0]
        return sample.float()


def _keep_sensitive_in_float32(transformer: WanTransformer3DModel) -> None:
    """Run the embedders of time and text, the modulation and the final projection in float32.

    diffusers itself keeps the norms, the time embedder and the modulation tables in float32.
    """

    def contexts_back(
        module: nn.Module, _: object, outputs: tuple[Tensor | None, ...]
    ) -> tuple[Tensor | None, ...]:
        temb, timestep_proj, text, image = outputs
        text, image = (None if each is None else each.to(dtype) for each in (text, image))
        return temb, timestep_proj, text, image

    dtype = transformer.patch_embedding.weight.dtype
    transformer.condition_embedder.float().register_forward_hook(contexts_back)
    transformer.proj_out.float().register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))


Rotate = Callable[[Tensor, tuple[Tensor, Tensor], int], Tensor]
"""Function from [batch, tokens, heads * size], tables of cosines and sines, and the heads to the result."""


def _rotated_by_operator(x: Tensor, tables: tuple[Tensor, Tensor], heads: int) -> Tensor:
    # The tables contain each angle twice, once for each channel of a pair.
    cos, sin = (table[0, :, 0, 0::2].to(x.dtype) for table in tables)
    return rotate(x, cos, sin, heads)


def _rotated_by_pairs(x: Tensor, tables: tuple[Tensor, Tensor], heads: int) -> Tensor:
    """Rotate in the arithmetic of diffusers: in the tables' type, rounded to the tensor's own."""
    cos, sin = (table[..., 0::2] for table in tables)
    first, second = x.reshape(*x.shape[:2], heads, -1, 2).unbind(-1)
    pairs = torch.stack((first * cos - second * sin, first * sin + second * cos), -1)
    return pairs.flatten(-2).flatten(2).type_as(x)


class _RotatingProcessor:
    """Attention processor for tracing Wan, with another way to rotate queries and keys.

    diffusers rotates by writing to every second channel, which becomes a chain of scatter operators.

    Args:
        rotated: Function that rotates.
    """

    _attention_backend = None
    _parallel_config = None

    def __init__(self, rotated: Rotate) -> None:
        self._rotated = rotated

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Attend, with the arguments of diffusers' `WanAttnProcessor`."""
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        pictures = None
        if attn.add_k_proj is not None:
            # The embeddings of pictures come before those of the text.
            count = context.shape[1] - TEXT_TOKENS
            pictures, context = context[:, :count], context[:, count:]
        query = attn.norm_q(attn.to_q(hidden_states))
        key = attn.norm_k(attn.to_k(context))
        value = attn.to_v(context)
        if rotary_emb is not None:
            query, key = (self._rotated(x, rotary_emb, attn.heads) for x in (query, key))
        query, key, value = (x.unflatten(2, (attn.heads, -1)) for x in (query, key, value))
        out: Tensor = dispatch_attention_fn(query, key, value, attn_mask=attention_mask).flatten(2, 3)
        if pictures is not None:
            key, value = attn.norm_added_k(attn.add_k_proj(pictures)), attn.add_v_proj(pictures)
            key, value = (x.unflatten(2, (attn.heads, -1)) for x in (key, value))
            out = out + dispatch_attention_fn(query, key, value).flatten(2, 3)
        for layer in attn.to_out:
            out = layer(out)
        return out


@contextmanager
def rotation(module: nn.Module, *, fused: bool) -> Iterator[None]:
    """Trace a denoiser with another rotation, and restore its own attention afterwards.

    Args:
        module: Denoiser.
        fused: True for ONNX Runtime's operator, False for standard operators without a scatter.
    """
    attentions = [part for part in module.modules() if isinstance(part, WanAttention)]
    own = [attention.processor for attention in attentions]
    for attention in attentions:
        attention.processor = _RotatingProcessor(_rotated_by_operator if fused else _rotated_by_pairs)
    try:
        yield
    finally:
        for attention, processor in zip(attentions, own, strict=True):
            attention.processor = processor


@contextmanager
def sdpa_attention(module: nn.Module) -> Iterator[None]:
    """Trace a text encoder with torch's attention function, which the export then lowers."""
    encoder: Any = module.encoder
    encoder.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        encoder.set_attn_implementation("eager")


@dataclass(frozen=True)
class Cache:
    """Shape of a causal convolution's cache of earlier frames.

    Args:
        channels: Number of channels of the convolution's input.
        scale: Height and width of the input as a multiple of the latents'.
    """

    channels: int
    scale: int

    def zeros(self, latents: Tensor) -> Tensor:
        """Return the initial cache, [batch, channels, 2, scale * height, scale * width]."""
        batch, _, _, height, width = latents.shape
        return latents.new_zeros(batch, self.channels, 2, self.scale * height, self.scale * width)


def decoder_caches(config: dict[str, object]) -> list[Cache]:
    """Return the caches of a VAE decoder, in the order in which it uses them.

    The function finds them by running the decoder for two latent frames on device "meta".

    Args:
        config: Configuration of :class:`AutoencoderKLWan`.
    """
    with torch.device("meta"), torch.no_grad():
        vae = AutoencoderKLWan.from_config(config)
        slots: list[Tensor | None] = [None] * vae._cached_conv_counts["decoder"]
        frame = vae.post_quant_conv(torch.zeros(1, vae.config.z_dim, 1, 2, 2))
        vae.decoder(frame, feat_cache=slots, feat_idx=[0], first_chunk=True)
        vae.decoder(frame, feat_cache=slots, feat_idx=[0])
    return [Cache(slot.shape[1], slot.shape[3] // 2) for slot in slots if slot is not None]


class DecoderStep(nn.Module):
    """Step of a Wan VAE decoder, which maps one latent frame and the caches to pixels and new caches.

    Latents have unit variance, as the denoiser returns them; the step applies the checkpoint's `latents_std`
    and `latents_mean`.
    """

    latents_mean: Tensor
    latents_std: Tensor

    def __init__(self, vae: AutoencoderKLWan, caches: list[Cache], *, first: bool) -> None:
        super().__init__()
        self.post_quant_conv, self.decoder = vae.post_quant_conv, vae.decoder
        self.caches, self.first = caches, first
        self.patch_size = vae.config.patch_size or 1
        shape = (1, vae.config.z_dim, 1, 1, 1)
        self.register_buffer("latents_mean", torch.tensor(vae.config.latents_mean).view(shape))
        self.register_buffer("latents_std", torch.tensor(vae.config.latents_std).view(shape))

    def step(self, latents: Tensor, caches: list[Tensor] | None) -> tuple[Tensor, ...]:
        """Decode one latent frame.

        Args:
            latents: Latent frame, [1, channels, 1, latent height, latent width], float32.
            caches: Caches of two frames each; None before the first latent frame.

        Returns:
            Pixels [1, 3, frames, height, width] in [-1, 1] (1 frame for the first latent frame, 4 for
            each later one), then the caches for the next step.
        """
        slots: list[Tensor | str | None] = [None] * len(self.caches) if caches is None else list(caches)
        frame = self.post_quant_conv(latents * self.latents_std + self.latents_mean)
        sample = self.decoder(frame, feat_cache=slots, feat_idx=[0], first_chunk=self.first)
        new_caches = tuple(
            self._two_frames(slot, cache, latents) for slot, cache in zip(slots, self.caches, strict=True)
        )
        pixels = unpatchify(sample, self.patch_size)
        return (pixels.clamp(-1.0, 1.0), *new_caches)

    def _two_frames(self, slot: Tensor | str | None, cache: Cache, latents: Tensor) -> Tensor:
        """Return the content of a slot as two frames, with zeros for missing frames.

        The result is equivalent to diffusers', which pads a shorter cache with zeros, and for a slot "Rep"
        (one frame seen, none kept) convolves with zeros.
        """
        zeros = cache.zeros(latents)
        if not isinstance(slot, Tensor):
            return zeros
        return torch.cat([zeros, slot], dim=2)[:, :, -2:]


class FirstDecoderStep(DecoderStep):
    """Step for the first latent frame, which has no caches."""

    def forward(self, latents: Tensor) -> tuple[Tensor, ...]:
        """Decode the first latent frame; see :meth:`DecoderStep.step`."""
        return self.step(latents, None)


class NextDecoderStep(DecoderStep):
    """Step for every later latent frame."""

    def forward(self, latents: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """Decode a later latent frame; see :meth:`DecoderStep.step`."""
        return self.step(latents, list(caches))


def decode(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """Decode a whole video with diffusers' own loop, the reference of the two steps.

    Args:
        vae: VAE in float32.
        latents: Latents of unit variance, [1, channels, latent_frames, height / 8, width / 8].

    Returns:
        Pixels [1, 3, 4 * (latent_frames - 1) + 1, height, width] in [-1, 1].
    """
    shape = (1, vae.config.z_dim, 1, 1, 1)
    mean = torch.tensor(vae.config.latents_mean, device=latents.device).view(shape)
    std = torch.tensor(vae.config.latents_std, device=latents.device).view(shape)
    pixels: Tensor = vae.decode(latents * std + mean, return_dict=False)[0]
    return pixels


def fit_latent_rgb(vae: AutoencoderKLWan) -> tuple[list[list[float]], list[float]]:
    """Fit the colour of a latent pixel as a linear function of its channels, for previews.

    The fit is a least squares fit to decoded random latents, averaged over blocks of 4 x 8 x 8. It excludes
    the first frame, which has no frames before it and differs from the others.

    Returns:
        Weight [channels][3] and bias [3]; colours in [-1, 1].
    """
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(1, vae.config.z_dim, 4, 16, 16, generator=generator)
    with torch.no_grad():
        pixels = decode(vae, latents)[:, :, 1:]
    colours = nn.functional.adaptive_avg_pool3d(pixels, (3, 16, 16))[0].flatten(1).T
    later = latents[0, :, 1:].flatten(1).T
    features = torch.cat([later, torch.ones(len(later), 1)], dim=1)
    solution = torch.linalg.lstsq(features.double(), colours.double()).solution
    return solution[:-1].tolist(), solution[-1].tolist()
