"""Matrix-Game 2.0: a world that begins with a picture and that a mouse and a keyboard steer.

A checkpoint is the folder `Skywork/Matrix-Game-2.0`, with upstream's `configs` beside the weights; if there
are none, the family's own copies of them apply. Each mode
is a variant with its own files; all modes share the VAE and the CLIP. A mode's inference YAML and the
`config.json` that it names give every size below. The inputs of upstream's exporter, a YAML and the network's
weights, suffice for the network's graphs.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.note import checkpoint_note
from slipway_export.families.matrix_game import vision
from slipway_export.families.matrix_game.causal_wan.config import BLOCK_FRAMES, POSITIONS
from slipway_export.families.matrix_game.causal_wan.inference import MODES, inference_file, read_inference
from slipway_export.families.matrix_game.causal_wan.tiny import public_file, public_files
from slipway_export.families.matrix_game.denoiser import (
    World,
    block_denoiser,
    blocks,
    config_file,
    cross_attention,
    denoiser,
    rebase,
    world_of,
)
from slipway_export.families.matrix_game.presets import PRESETS, PUBLIC_AXES
from slipway_export.families.matrix_game.vision import CLIP_FILE, VAE_FILE
from slipway_export.spec import (
    AuthoredModel,
    Axis,
    Component,
    Family,
    GraphFile,
    NamedFile,
    Plan,
    Stepped,
    Variant,
)
from slipway_serving.families.matrix_game.facts import FACTS_FILE, Actions, Facts, Latents, ModelNames
from slipway_serving.families.matrix_game.request import REQUESTS
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.protocol.video.requests import Decoding

NAME = "matrix_game"
USUAL_MODE = "universal"
_LARGEST_EXAMPLE_BYTES = 64 << 10
"""Largest example that a model's configuration contains; clients read all of a configuration."""


def plan(checkpoint: Checkpoint, axes: Sequence[Axis], *, mode: str) -> Plan:
    """Describe the models that a mode of a checkpoint becomes.

    Args:
        checkpoint: Checkpoint; only its configurations and the headers of its weights are read.
        axes: Ranges of the family's axes.
        mode: Name from `MODES`.

    Raises:
        InvalidRequest: A file is missing or belongs to another mode, or files do not fit together.
    """
    world = world_of(checkpoint, mode)
    by_name = {axis.name: axis for axis in axes} | world.plane
    components = [denoiser(world, by_name)]
    stepped: list[Stepped] = []
    authored: list[AuthoredModel] = []
    # Files given by name may lack the VAE and the CLIP, which only pictures need.
    has_vision = checkpoint.has(VAE_FILE) and checkpoint.has(CLIP_FILE)
    # A network that attends to all earlier frames has no window to cache, so it generates whole videos only.
    has_window = world.config.local_attn_size > 0
    if has_window:
        crossed, block, moved = (
            describe(world, by_name) for describe in (cross_attention, block_denoiser, rebase)
        )
        if has_vision:
            crossed, block, moved = (_of_session(world, component) for component in (crossed, block, moved))
        components += [crossed, block, moved]
        stepped.append(blocks(world, block))
    if has_vision:
        first, following, decoding = vision.vae_decoder(checkpoint, by_name)
        components += [vision.image_encoder(checkpoint, by_name), vision.vae_encoder(checkpoint, by_name)]
        components += [first, following]
        stepped.append(decoding)
        authored.append(AuthoredModel(f"{NAME}_vae_decoder", source="wan_t2v_vae_decoder", request=Decoding))
        _check_vision(world, components)
    if has_window and has_vision:
        files = {f"1/{FACTS_FILE}": facts_of(checkpoint, mode).to_json()}
        authored.append(
            AuthoredModel(
                f"{NAME}_{mode}",
                files,
                source=NAME,
                request=REQUESTS[mode],
                examples=_examples(checkpoint, mode),
                note=checkpoint_note(checkpoint),
            )
        )
    return Plan(tuple(components), tuple(authored), tuple(stepped))


def facts_of(checkpoint: Checkpoint, mode: str) -> Facts:
    """Return the facts about a checkpoint that a served world needs.

    Args:
        checkpoint: Checkpoint with the VAE.
        mode: Name from `MODES`.

    Raises:
        InvalidRequest: A file is refused as in :func:`plan`, or the network has no attention window to cache.
    """
    world = world_of(checkpoint, mode)
    encoder = vision.vae_encoder(checkpoint, world.plane)
    point = encoder.points()["opt"]
    (_, _, height, width), (_, _, frames, *_) = (
        tensor.at(point) for tensor in (encoder.inputs[0], encoder.outputs[0])
    )
    config, inference, action = world.config, world.inference, world.config.action
    return Facts(
        mode=mode,
        steps=inference.denoising_step_list,
        timestep_shift=inference.timestep_shift,
        latents=Latents(
            channels=config.out_dim,
            mask_channels=config.cond_dim - config.out_dim,
            height=inference.latent_height,
            width=inference.latent_width,
            block_frames=BLOCK_FRAMES,
            held_frames=config.held_frames,
            positions=POSITIONS,
            picture_frames=frames,
        ),
        actions=Actions(
            widths={tensor.name: int(tensor.shape[-1]) for tensor in world.actions(1)},
            before=action.window_rows,
            rows=action.rows(BLOCK_FRAMES),
        ),
        picture_px=(height, width),
        frames_per_latent=action.vae_time_compression_ratio,
        models=ModelNames(
            image_encoder=f"{NAME}_image_encoder",
            vae_encoder=f"{NAME}_vae_encoder",
            vae_decoder=f"{NAME}_vae_decoder",
        ),
    )


def _examples(checkpoint: Checkpoint, mode: str) -> dict[str, str]:
    """Return the mode's first picture as base64 text, if the checkpoint comes with one of a small size."""
    file = f"{mode}.png"
    if not checkpoint.has(file) or checkpoint.file(file).stat().st_size > _LARGEST_EXAMPLE_BYTES:
        return {}
    return {"image": base64.b64encode(checkpoint.file(file).read_bytes()).decode()}


def _of_session(world: World, component: Component) -> Component:
    """Return a component of the network as a graph of the served world's model."""
    return replace(component, name=world.mode, graph=component.name.removeprefix(f"{world.mode}_"))


def _check_vision(world: World, components: Sequence[Component]) -> None:
    """Refuse a VAE or a CLIP that does not fit the network, as files from different sources may not."""
    by_label = {component.label: component for component in components}
    encoder, image = by_label["vae_encoder"], by_label["image_encoder"]
    frames = by_label["vae_decoder/next"].outputs[0].shape[2]
    expected = world.visual_context.shape[1:]
    rules = (
        (CLIP_FILE, "features", list(expected), list(image.outputs[0].shape[1:])),
        (VAE_FILE, "channels of latents", world.config.out_dim, encoder.outputs[0].shape[1]),
        (VAE_FILE, "frames of a latent frame", world.config.action.vae_time_compression_ratio, frames),
    )
    raise_all(
        f"checkpoint {world.checkpoint.source}",
        [
            f"{file}: {what} must be {right} as in {MODES[world.mode].weights}, got {got}"
            for file, what, right, got in rules
            if got != right
        ],
    )


def _model_config(yaml: Path) -> Mapping[str, Path]:
    """Find the configuration that a YAML names: in the working folder, as upstream, or above the YAML."""
    where = f"--config-path {yaml}"
    file = config_file(read_inference(yaml, where))
    for folder in (Path.cwd(), *yaml.absolute().parents):
        if (folder / file).is_file():
            return {file: folder / file}
    raise InvalidRequest(
        f"{where}: model_config must name a folder with config.json, from here or from a folder above the"
        f" file, got {file}; try to run from upstream's Matrix-Game-2 folder"
    )


def _common_files(weights: Path) -> Mapping[str, Path]:
    """Find the files common to all modes: in the folder above the weights, as published, or beside them."""
    beside = weights.absolute().parent
    return {
        file: folder / file
        for file in (VAE_FILE, CLIP_FILE)
        for folder in (beside.parent, beside)
        if (folder / file).is_file()
    }


def _mode(mode: str) -> dict[str, Any]:
    """Return the fields of a mode's variant; the family itself takes those of the usual mode."""
    yaml, weights = inference_file(mode), MODES[mode].weights
    return {
        "plan": partial(plan, mode=mode),
        "layout": (yaml, weights, VAE_FILE, CLIP_FILE),
        "files": {
            "config-path": NamedFile(yaml, Path(yaml), _model_config),
            "checkpoint-path": NamedFile(weights, leads_to=_common_files),
        },
        "supplied": {file: partial(public_file, mode, file) for file in public_files(mode)},
        "graph_file": GraphFile(f"{mode}_denoiser", Path("outputs/causal_wan_model.onnx"), opset=17),
    }


FAMILY = Family(
    name=NAME,
    upstream="Skywork/Matrix-Game-2.0",
    summary="a world that begins with a picture and is steered block by block",
    served=tuple(f"{NAME}_{mode}" for mode in MODES),
    requests=tuple(REQUESTS.values()),
    axes=PUBLIC_AXES,
    presets=PRESETS,
    variants={
        mode: Variant(
            f"{known.keyboard} keys{' and a mouse' if known.mouse else ''}",
            **_mode(mode),
        )
        for mode, known in MODES.items()
    },
    sizes={"batch-size": "batch", "num-output-frames": "latent_frames"},
    **_mode(USUAL_MODE),
)
