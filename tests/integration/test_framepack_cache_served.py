"""FramePack's first-block cache, served: against diffusers' own, and against the full computation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FirstBlockCacheConfig, HunyuanVideoFramepackPipeline
from diffusers.hooks.first_block_cache import FBCHeadBlockHook
from framepack_fixtures import AXES, small_checkpoint, small_repository
from PIL import Image
from wan_reference import psnr

from slipway_client import Client, Frames, Progress
from slipway_export.families.framepack_i2v.family import FAMILY
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.families.framepack_i2v.request import ImageToVideoRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.images import pixels
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

PICTURE = np.random.default_rng(3).integers(0, 256, (4, 6, 3), np.uint8).repeat(8, 0).repeat(8, 1)
REQUEST = ImageToVideoRequest(
    image=PICTURE,
    prompt="A paper boat.",
    seconds=2.4,
    height=32,
    width=48,
    steps=8,
    guidance_scale=9.0,
    seed=7,
    output="frames",
)


@pytest.fixture(scope="module")
def cached_repository(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small checkpoint with a cut transformer; the other parts are taken as they are placed."""
    repository, _ = small_repository(shared)
    cached = Path(shutil.copytree(repository, tmp_path_factory.mktemp("cached") / "repository"))
    options = ExportOptions(str(small_checkpoint(shared)), cached, variant="first-block-cache", axes=AXES)
    run_export(FAMILY, options)
    return cached


@pytest.fixture(scope="module")
def server(cached_repository: Path) -> Iterator[Server]:
    with Server(ServerConfig(cached_repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.grpc_url) as connected:
        yield connected


@pytest.fixture(scope="module")
def upstream(shared: Path) -> HunyuanVideoFramepackPipeline:
    pipeline = HunyuanVideoFramepackPipeline.from_pretrained(small_checkpoint(shared))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture
def their_hits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each evaluation in diffusers reused its cache, in order."""
    hits: list[bool] = []
    decide = FBCHeadBlockHook._should_compute_remaining_blocks

    def told(self: FBCHeadBlockHook, residual: torch.Tensor) -> bool:
        computes = decide(self, residual)
        hits.append(not computes)
        return computes

    monkeypatch.setattr(FBCHeadBlockHook, "_should_compute_remaining_blocks", told)
    return hits


def frames_of(client: Client, request: ImageToVideoRequest) -> Frames:
    *_, result = client.generate(request)
    assert isinstance(result, Frames)
    return result


def in_sections(transformer: Any, steps: int) -> Any:
    """Return a forward with a cache for each section, which diffusers' pipeline does not set by itself."""
    own, done = transformer.forward, 0

    def forward(*args: Any, **options: Any) -> Any:
        nonlocal done
        section, done = done // steps, done + 1
        with transformer.cache_context(f"section {section}"):
            return own(*args, **options)

    return forward


def reference(
    pipeline: HunyuanVideoFramepackPipeline, request: ImageToVideoRequest, monkeypatch: pytest.MonkeyPatch
) -> np.ndarray:
    """Run diffusers' pipeline with its own cache; return uint8 frames."""
    transformer = pipeline.transformer
    transformer.enable_cache(FirstBlockCacheConfig(threshold=request.cache_threshold))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(transformer, "forward", in_sections(transformer, request.steps))
            output = pipeline(
                image=Image.fromarray(pixels(request.image)),
                prompt=request.prompt,
                height=request.height,
                width=request.width,
                num_frames=33 * request.sections,
                num_inference_steps=request.steps,
                guidance_scale=request.guidance_scale,
                generator=torch.Generator("cpu").manual_seed(request.seed),
                output_type="np",
            )
    finally:
        transformer.disable_cache()
    return (output.frames[0] * 255).round().astype(np.uint8)


@pytest.fixture(scope="module")
def full(server: Server) -> Frames:
    """The video by the cut transformer where no cache is asked for."""
    with Client(server.grpc_url) as client:
        return frames_of(client, REQUEST)


def test_nothing_is_reused_when_the_threshold_is_zero(client: Client, full: Frames) -> None:
    none = frames_of(client, replace(REQUEST, cache_threshold=0.0))
    assert (none.cache_hit_rate, full.cache_hit_rate) == (0, None)
    np.testing.assert_array_equal(none.array, full.array)


def test_cache_equals_diffusers_cache(
    client: Client,
    full: Frames,
    upstream: HunyuanVideoFramepackPipeline,
    their_hits: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Random weights heed the timestep strongly, so that the first block changes much from step to step.
    request = replace(REQUEST, cache_threshold=0.8)
    ours = frames_of(client, request)
    expected = reference(upstream, request, monkeypatch)
    theirs, loss = psnr(ours.array, expected), psnr(ours.array, full.array)
    print(f"hit rate {ours.cache_hit_rate}, {theirs:.1f} dB to diffusers, {loss:.1f} dB to all computed")
    assert ours.cache_hit_rate == pytest.approx(np.mean(their_hits)) and 0 < ours.cache_hit_rate < 1
    assert len(their_hits) == 2 * REQUEST.steps and not their_hits[REQUEST.steps]
    assert theirs >= 45
    assert 25 <= loss < 45


def test_each_section_begins_anew_when_every_step_could_be_a_hit(client: Client, full: Frames) -> None:
    most = frames_of(client, replace(REQUEST, cache_threshold=1e9))
    loss = psnr(most.array, full.array)
    print(f"hit rate {most.cache_hit_rate}, {loss:.1f} dB to all computed")
    assert most.cache_hit_rate == pytest.approx(1 - 1 / REQUEST.steps)
    assert 20 <= loss < 45


def test_caches_are_freed_when_videos_are_cancelled(client: Client) -> None:
    """Two caches fit into the transformer; a video that leaves its own behind would soon make it refuse."""
    for _ in range(3):
        with closing(client.stream(replace(REQUEST, cache_threshold=0.05, steps=50))) as events:
            while not (isinstance(event := next(events), Progress) and event.step == 3):
                pass
    short = replace(REQUEST, seconds=1.2, steps=1, cache_threshold=0.05)
    assert frames_of(client, short).cache_hit_rate == 0


def test_transformer_refuses_a_threshold_without_a_session(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="cache_threshold must be given in a session, and only there"):
        client.infer("framepack_i2v_transformer", {**tensors(), "cache_threshold": np.ones(1, np.float32)})
    assert client.infer("framepack_i2v_transformer", tensors())["sample"].shape == (1, 16, 9, 2, 2)


def tensors() -> dict[str, np.ndarray]:
    """Return inputs of the cut transformer, which are those of the whole."""
    from slipway_export.checkpoint.opening import open_checkpoint
    from slipway_export.graph.onnx import example_inputs

    with open_checkpoint(FAMILY, "tiny") as checkpoint:
        whole = FAMILY.plan(checkpoint, FAMILY.presets["tiny"].axes).components[0]
    return example_inputs(whole, {**whole.points()["min"], "text_tokens": 3})


def test_manifest_and_facts_tell_the_variant(cached_repository: Path) -> None:
    manifest = json.loads((cached_repository / "framepack_i2v_transformer" / "manifest.json").read_text())
    facts = json.loads((cached_repository / "framepack_i2v" / "1" / "pipeline.json").read_text())
    assert (manifest["variant"], facts["first_block_cache"]) == ("first-block-cache", True)
    files = {path.name for path in (cached_repository / "framepack_i2v_transformer" / "1").glob("*.onnx")}
    assert files == {"head.onnx", "change.onnx", "tail.onnx", "finish.onnx"}
