"""State of a world, and the networks that generate its next block: denoise, decode, commit.

:class:`World` is the whole state of a world between two turns; the methods of :class:`Networks` take one and
do not change it. Keys and values stay on the graphs' device. Denoising runs the block's graph once for each
step with the same window, and requests only the flow; a run of the clean latents at timestep 0 gives the
window of the next block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.diffusion.denoise import denoise
from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.schedules import FewStep
from slipway_serving.families.matrix_game import actions
from slipway_serving.families.matrix_game.facts import Facts
from slipway_serving.families.matrix_game.picture import conditions
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.runtime.graph import Array, Graph, State
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import Recorder
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.stepped import CACHE_OUTPUT_PREFIX, SteppedModel
from slipway_serving.video.frames import Frames, to_uint8

FLOW, REBASED_PREFIX = "flow_pred", "rebased_"
BLOCK_FILE, CROSS_FILE, REBASE_FILE = "block_denoiser.onnx", "cross_attention.onnx", "rebase.onnx"


@dataclass(frozen=True)
class World:
    """State of a world between two turns.

    Attributes:
        picture: Latents of the first picture, [1, channels, picture frames, height, width].
        noise: Noise generator, which continues over the blocks.
        cross_attention: Cross-attention inputs of every block from the first picture.
        window: Keys and values of the frames before.
        decoder: Caches of the decoder; None before the first latent frame.
        rows: Rows of actions that the next block needs; empty before the first block.
        blocks: Number of blocks so far.
        position: Place of the next block's first latent frame.
    """

    picture: NDArray[np.float32]
    noise: Noise
    cross_attention: State
    window: State
    decoder: State | None = None
    rows: actions.Rows = field(default_factory=dict)
    blocks: int = 0
    position: int = 0


@dataclass(frozen=True)
class Block:
    """Block that is denoised but not yet committed.

    Attributes:
        inputs: Inputs of its graph other than latents and timestep.
        rows: Rows of actions, see :func:`slipway_serving.families.matrix_game.actions.append_rows`.
        latents: Clean latents, [1, channels, block frames, height, width].
    """

    inputs: dict[str, Any]
    rows: actions.Rows
    latents: torch.Tensor


class Networks:
    """Graphs of a mode.

    Args:
        settings: Settings of the model, whose folder holds the network's graphs; the decoder's graphs are in
            the folder of the decoder's model in the same repository.
        facts: Facts of the mode.

    Raises:
        InvalidRequest: A graph does not load or a parameter cannot be read.
        Unrecoverable: The decoder's graphs do not fit together.
    """

    def __init__(self, settings: Settings, facts: Facts) -> None:
        self._model, self._facts, self._recorder = settings.model, facts, settings.recorder
        self._block, self._cross, self._rebase = (
            Graph(settings, file) for file in (BLOCK_FILE, CROSS_FILE, REBASE_FILE)
        )
        folder = settings.repository / facts.models.vae_decoder / settings.folder.name
        self._decoder = SteppedModel(replace(settings, folder=folder))
        self._cache_names = [
            name.removeprefix(CACHE_OUTPUT_PREFIX)
            for name in self._block.outputs
            if name.startswith(CACHE_OUTPUT_PREFIX)
        ]

    @property
    def cross_attention(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of every block's inputs from the first picture, by name."""
        return {name: self._block.shape(name) for name in self._cross.outputs}

    @property
    def window(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the keys and values of the frames before a block, by name."""
        return {name: self._block.shape(name) for name in self._cache_names}

    @property
    def decoder_caches(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the decoder's caches, by name."""
        return self._decoder.caches

    def to_device(self, arrays: Mapping[str, Array]) -> State:
        """Copy arrays of :attr:`cross_attention` or :attr:`window` to the graphs' device."""
        return {name: self._block.to_device(array) for name, array in arrays.items()}

    def decoder_to_device(self, arrays: Mapping[str, Array]) -> State:
        """Copy arrays of :attr:`decoder_caches` to the device of the decoder's graphs."""
        return self._decoder.to_device(arrays)

    def warm(self) -> None:
        """Run every graph once: a first and a second block from an empty picture, then a rebase."""
        latents = self._facts.latents
        shape = (1, latents.channels, latents.picture_frames, latents.height, latents.width)
        context = self._cross.zeros(self._cross.inputs)["visual_context"]
        world = self.begin(np.zeros(shape, np.float32), context.numpy(), seed=0)
        for _ in range(2):
            rows = {
                name: np.zeros((1, width), np.float32) for name, width in self._facts.actions.widths.items()
            }
            interruption = Interruption(self._model, lambda: False)
            block = self.denoise(world, rows, interruption, Recorder())
            for _, decoder in self.decode(world, block, interruption):
                world = replace(world, decoder=decoder)
            world = self.commit(world, block)
        self.rebase(world)

    def begin(self, picture: NDArray[np.float32], visual_context: NDArray[np.float32], seed: int) -> World:
        """Begin a world.

        Args:
            picture: Latents of the first picture, as in :class:`World`.
            visual_context: Features of the first picture from the image encoder, [1, 257, width].
            seed: Seed of the noise.
        """
        cross_attention = self._cross.run({"visual_context": visual_context})
        return World(picture, Noise(seed), cross_attention, self._block.zeros(self._cache_names))

    def denoise(
        self, world: World, steering: actions.Rows, interruption: Interruption, recorder: Recorder
    ) -> Block:
        """Denoise a world's next block.

        Args:
            world: World before the block.
            steering: Actions of the block, a row for each frame or one for all.
            interruption: Check for cancellation and the time limit, made before each step.
            recorder: Recorder of each step's time.

        Raises:
            Cancelled: The caller cancelled.
            DeadlineExceeded: The time limit was exceeded.
            Unrecoverable: The latents are no longer finite.
        """
        sizes = self._facts.latents
        start = world.position
        rows = actions.append_rows(world.rows, steering, self._facts)
        inputs = {
            "cond_concat": conditions(world.picture, start, sizes),
            "start": np.array([start], np.int64),
            **actions.network_inputs(rows, self._facts),
            **world.cross_attention,
            **world.window,
        }
        schedule = FewStep(self._facts.steps, self._facts.timestep_shift, world.noise)
        latents = world.noise.next((1, sizes.channels, sizes.block_frames, sizes.height, sizes.width))

        def flow(latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
            outputs = self._run(inputs, latents, float(timestep), [FLOW])
            return torch.from_numpy(outputs[FLOW].numpy())

        for step_latents in denoise(schedule, latents, flow, interruption, recorder, self._model):
            latents = step_latents
        return Block(inputs, rows, latents)

    def decode(
        self, world: World, block: Block, interruption: Interruption
    ) -> Iterator[tuple[Frames, State]]:
        """Decode a block, latent frame by latent frame.

        Args:
            world: World before the block.
            block: Block from :meth:`denoise`.
            interruption: Check for cancellation and the time limit, made before each latent frame.

        Yields:
            Frames of a latent frame, [1 or 4, height, width, 3], uint8, and the decoder's caches after it.

        Raises:
            Cancelled: The caller cancelled.
            DeadlineExceeded: The time limit was exceeded.
            Unrecoverable: The frames are not finite.
        """
        caches, latents = world.decoder, block.latents.numpy()
        for index in range(latents.shape[2]):
            interruption.check(f"before decoding latent {index + 1} of {latents.shape[2]}")
            outputs, caches = self._decoder.step({"latents": latents[:, :, index : index + 1]}, caches)
            if not np.isfinite(outputs["sample"]).all():
                raise Unrecoverable(
                    f"{self._model}: frames must be finite, got NaN or infinity in latent {index + 1} of"
                    f" block {world.blocks}; try another precision of the export"
                )
            yield to_uint8(outputs["sample"]), caches

    def commit(self, world: World, block: Block) -> World:
        """Return the world after a block, with the window that results from the clean latents.

        Args:
            world: World before the block, but with the decoder's caches after it.
            block: Block from :meth:`denoise`.
        """
        wanted = [f"{CACHE_OUTPUT_PREFIX}{name}" for name in self._cache_names]
        left = self._run(block.inputs, block.latents, 0.0, wanted)
        window = {name.removeprefix(CACHE_OUTPUT_PREFIX): value for name, value in left.items()}
        rows = actions.history_rows(block.rows, self._facts)
        position = world.position + self._facts.latents.block_frames
        return replace(world, window=window, rows=rows, blocks=world.blocks + 1, position=position)

    def rebase(self, world: World) -> World:
        """Return a world whose next block is at :attr:`Facts.rebased_position`, with its window moved too.

        Attention depends on the distance between queries and keys, so the next block computes the same as
        without the rebase, except for the rounding of the keys, whose positions are rotated once more.
        """
        by = world.position - self._facts.rebased_position
        keys = {name: world.window[name] for name in self._rebase.inputs if name in world.window}
        turned = self._rebase.run({"by": np.array([by], np.int64), **keys})
        window = world.window | {name.removeprefix(REBASED_PREFIX): value for name, value in turned.items()}
        return replace(world, window=window, position=self._facts.rebased_position)

    def _run(
        self, inputs: dict[str, Any], latents: torch.Tensor, timestep: float, wanted: list[str]
    ) -> State:
        times = np.full((1, latents.shape[2]), timestep, np.float32)
        inputs = {"noisy_input": latents.numpy(), "timestep": times, **inputs}
        return self._block.run(inputs, in_memory=[FLOW], wanted=wanted)
