"""Components of Matrix-Game 2.0's network: over all frames of a video, and over one block of frames.

A mode's inference YAML and the `config.json` that it names give every size (:class:`World`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.matrix_game.causal_wan.config import (
    BLOCK_FRAMES,
    CLIP_TOKENS,
    PATCH,
    POSITIONS,
    Config,
    read_config,
)
from slipway_export.families.matrix_game.causal_wan.inference import (
    MODES,
    Inference,
    inference_file,
    read_inference,
)
from slipway_export.spec import (
    Axis,
    Component,
    DType,
    Loading,
    Precision,
    StepInput,
    Stepped,
    TensorSpec,
    Tolerance,
)
from slipway_serving.protocol.errors import InvalidRequest, raise_all

if TYPE_CHECKING:
    from torch import Tensor, nn

    from slipway_export.families.matrix_game.causal_wan.network import CausalWan

# Values in one row of mouse input: up and down, left and right.
MOUSE = 2

# Cached keys and values have no fixed scale: the relative bounds decide, the absolute one is a safety net.
TOLERANCE = {
    Precision.FP32: Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.99999),
    Precision.FP16: Tolerance(max_abs=1.0, relative_l2=2e-2, cosine=0.999),
    Precision.BF16: Tolerance(max_abs=5.0, relative_l2=5e-2, cosine=0.998),
    Precision.INT8: Tolerance(max_abs=5.0, relative_l2=8e-2, cosine=0.997),
    Precision.FP8: Tolerance(max_abs=10.0, relative_l2=0.2, cosine=0.985),
    Precision.INT4: Tolerance(max_abs=20.0, relative_l2=0.3, cosine=0.96),
}
# The embedders of timesteps, picture and keys and the last projection are small and affect all later layers.
KEEP_FLOAT = ("*.time_embedding", "*.time_projection", "*.img_emb", "*.keyboard_embed", "*.head.head")
# Blocks of frames that are verified as one run; in every mode, the third already drops the first's keys.
_VERIFIED_BLOCKS = 8


@dataclass(frozen=True)
class World:
    """A mode of a checkpoint, as its files describe it.

    Args:
        checkpoint: Checkpoint that contains the files.
        inference: Inference YAML of the mode.
        config: Configuration of the network.
        visual_dim: Width of the first picture's features that the network takes.
    """

    checkpoint: Checkpoint
    inference: Inference
    config: Config
    visual_dim: int

    @property
    def mode(self) -> str:
        """The mode's name in `MODES`."""
        return self.inference.mode

    @property
    def tokens(self) -> int:
        """Number of tokens of a latent frame."""
        return self.inference.latent_height * self.inference.latent_width // PATCH**2

    @property
    def plane(self) -> dict[str, Axis]:
        """The axes of pictures and latents, fixed to the one size that the network supports."""
        sides = {"token_height": self.inference.latent_height, "token_width": self.inference.latent_width}
        return {name: Axis(name, *[side // PATCH] * 3) for name, side in sides.items()}

    def load(self, precision: Precision, loading: Loading) -> CausalWan:
        """Load the network."""
        from slipway_export.families.matrix_game.causal_wan.weights import load_network

        return load_network(
            self.checkpoint, config_file(self.inference), MODES[self.mode].weights, precision, loading
        )

    def frames(self, name: str, channels: int, count: int | str) -> TensorSpec:
        """Return the tensor of `count` latent frames."""
        return _tensor(name, channels, count, self.inference.latent_height, self.inference.latent_width)

    def actions(self, rows: int | str) -> tuple[TensorSpec, ...]:
        """Return the tensors of actions, with `rows` rows each."""
        widths = {"mouse_cond": MOUSE, "keyboard_cond": self.config.action.keyboard_dim_in}
        return tuple(_tensor(name, rows, widths[name]) for name in MODES[self.mode].actions)

    @property
    def visual_context(self) -> TensorSpec:
        """CLIP's features of the first picture."""
        return _tensor("visual_context", CLIP_TOKENS, self.visual_dim)


def world_of(checkpoint: Checkpoint, mode: str) -> World:
    """Read the configurations of a mode.

    Args:
        checkpoint: Checkpoint that contains the configurations.
        mode: Name from `MODES`.

    Raises:
        InvalidRequest: A file is missing or belongs to another mode, or network and YAML do not fit together.
    """
    from slipway_export.families.matrix_game.causal_wan.weights import visual_dim

    yaml = inference_file(mode)
    where = f"{checkpoint.where(yaml)}: {yaml}"
    inference = read_inference(checkpoint.file(yaml), where)
    if inference.mode != mode:
        raise InvalidRequest(
            f"{where}: mode must be {mode}, got {inference.mode}; try --mode {inference.mode}"
        )
    file = config_file(inference)
    config = read_config(checkpoint.config(file), f"{checkpoint.where(file)}: {file}")
    known, action = MODES[mode], config.action
    rules = (
        ("action_config.keyboard_dim_in", known.keyboard, action.keyboard_dim_in),
        ("action_config.enable_mouse", known.mouse, action.enable_mouse),
        ("action_config.mouse_dim_in", MOUSE, action.mouse_dim_in if known.mouse else MOUSE),
        ("out_dim", inference.latent_channels, config.out_dim),
    )
    raise_all(
        f"{checkpoint.where(file)}: {file}",
        [
            f"{key} must be {expected} in mode {mode}, got {got}"
            for key, expected, got in rules
            if got != expected
        ],
    )
    return World(checkpoint, inference, config, visual_dim(checkpoint, known.weights))


def denoiser(world: World, axes: Mapping[str, Axis]) -> Component:
    """Describe the graph over all frames of a video, with the inputs and outputs of upstream's exporter."""
    frames = "latent_frames"
    latents = world.config.out_dim

    def load(precision: Precision, loading: Loading) -> nn.Module:
        from slipway_export.families.matrix_game.causal_wan.whole import Denoiser

        return Denoiser(world.load(precision, loading), world.inference.timestep_shift)

    return Component(
        name=f"{world.mode}_denoiser",
        inputs=(
            world.frames("noisy_input", latents, frames),
            TensorSpec("timestep", DType.FLOAT32, ("batch", frames), values=(0, 1000)),
            world.visual_context,
            world.frames("cond_concat", world.config.cond_dim, frames),
            *world.actions(f"4 * {frames} - 3"),
        ),
        outputs=(world.frames("flow_pred", latents, frames), world.frames("pred_x0", latents, frames)),
        axes=(axes["batch"], axes[frames]),
        load=load,
        keep_float=KEEP_FLOAT,
        tolerance=TOLERANCE,
    )


def cross_attention(world: World, axes: Mapping[str, Axis]) -> Component:
    """Describe the graph that maps the first picture's features to the keys and values for every block."""

    def load(precision: Precision, loading: Loading) -> nn.Module:
        from slipway_export.families.matrix_game.causal_wan.cached import CrossAttention

        return CrossAttention(world.load(precision, loading))

    return Component(
        name=f"{world.mode}_cross_attention",
        inputs=(world.visual_context,),
        outputs=_crossed(world),
        axes=(axes["batch"],),
        load=load,
        keep_float=KEEP_FLOAT,
        tolerance=TOLERANCE,
    )


def block_denoiser(world: World, axes: Mapping[str, Axis]) -> Component:
    """Describe the graph of one block of frames, with the keys and values of earlier frames as tensors."""
    from slipway_export.families.matrix_game.causal_wan.cached import cache_names

    names, latents = cache_names(world.config), world.config.out_dim

    def load(precision: Precision, loading: Loading) -> nn.Module:
        from slipway_export.families.matrix_game.causal_wan.cached import BlockDenoiser

        return BlockDenoiser(world.load(precision, loading))

    return Component(
        name=f"{world.mode}_block_denoiser",
        inputs=(
            world.frames("noisy_input", latents, BLOCK_FRAMES),
            TensorSpec("timestep", DType.FLOAT32, ("batch", BLOCK_FRAMES), values=(0, 1000)),
            world.frames("cond_concat", world.config.cond_dim, BLOCK_FRAMES),
            *world.actions(world.config.action.rows(BLOCK_FRAMES)),
            TensorSpec("start", DType.INT64, ("batch",), values=(0, POSITIONS - BLOCK_FRAMES)),
            *_crossed(world),
            *(_cache(world, name, name, initial=0.0) for name in names),
        ),
        outputs=(
            world.frames("flow_pred", latents, BLOCK_FRAMES),
            *(_cache(world, name, f"next_{name}") for name in names),
        ),
        axes=(axes["batch"],),
        load=load,
        keep_float=KEEP_FLOAT,
        tolerance=TOLERANCE,
    )


def rebase(world: World, axes: Mapping[str, Axis]) -> Component:
    """Describe the graph that moves the cached keys to earlier positions."""
    from slipway_export.families.matrix_game.causal_wan.cached import key_names

    names = key_names(world.config)

    def load(_: Precision, _loading: Loading) -> nn.Module:
        from slipway_export.families.matrix_game.causal_wan.cached import Rebase

        return Rebase(world.config).eval()

    return Component(
        name=f"{world.mode}_rebase",
        inputs=(
            TensorSpec("by", DType.INT64, ("batch",), values=(0, POSITIONS)),
            *(_cache(world, name, name) for name in names),
        ),
        outputs=tuple(_cache(world, name, f"rebased_{name}") for name in names),
        axes=(axes["batch"],),
        load=load,
        # This graph has no weights, and keys are float32 in every precision.
        tolerance={Precision.FP32: TOLERANCE[Precision.FP32]},
    )


def blocks(world: World, block: Component) -> Stepped:
    """Describe a world: a sequence of blocks, the last run of each at timestep 0."""

    def reference(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        from slipway_export.families.matrix_game.causal_wan.cached import whole_flow

        network = world.load(Precision.FP32, Loading.READ).to(inputs["noisy_input"].device)
        return {"flow_pred": whole_flow(network, inputs)}

    action = world.config.action
    step_rows = BLOCK_FRAMES * action.vae_time_compression_ratio
    action_input = StepInput(axis=1, overlap=action.rows(BLOCK_FRAMES) - step_rows)
    return Stepped(
        next=block,
        inputs={
            "noisy_input": StepInput(axis=2, each_run=True),
            "timestep": StepInput(axis=1, each_run=True, committed=0.0),
            "cond_concat": StepInput(axis=2),
            **dict.fromkeys(MODES[world.mode].actions, action_input),
            "start": StepInput(make=lambda step: np.array([step * BLOCK_FRAMES], np.int64)),
        },
        outputs={"flow_pred": 2},
        steps=_VERIFIED_BLOCKS,
        runs=2,
        reference=reference,
    )


def config_file(inference: Inference) -> str:
    """Return the path of the network's configuration that a YAML names."""
    return f"{inference.model_config}/config.json"


def _crossed(world: World) -> tuple[TensorSpec, ...]:
    from slipway_export.families.matrix_game.causal_wan.cached import cross_names

    heads = (world.config.num_heads, world.config.head_dim)
    return tuple(_tensor(name, CLIP_TOKENS, *heads) for name in cross_names(world.config))


def _cache(world: World, name: str, tensor: str, initial: float | None = None) -> TensorSpec:
    """Return the tensor of a cache from :func:`cache_names`, under the name `tensor`."""
    config, kind = world.config, name.partition("_")[0]
    action_heads = (config.action.heads_num, sum(config.action.rope_dim_list))
    heads = (config.num_heads, config.head_dim) if kind == "self" else action_heads
    positions = () if kind == "keyboard" else (world.tokens,)
    shape = ("batch", config.held_frames, *positions, *heads)
    return TensorSpec(tensor, DType.FLOAT32, shape, initial=initial)


def _tensor(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name, DType.FLOAT32, ("batch", *shape))
