"""Guidance interval and first-block cache, served: against diffusers' own, and the full computation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FirstBlockCacheConfig, WanPipeline
from diffusers.guiders import ClassifierFreeGuidance
from diffusers.hooks.first_block_cache import FBCHeadBlockHook
from stopped_videos import cached_export
from wan_reference import frames_of_pipeline, psnr

from slipway_cli import root
from slipway_client import Client, Frames, Progress, TextToVideoRequest, Video
from slipway_serving.families.wan_t2v.facts import PipelineFacts
from slipway_serving.families.wan_t2v.pipeline import generate
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

REQUEST = TextToVideoRequest(
    prompt="a serene lake",
    negative_prompt="blurry, static",
    frames=13,
    height=112,
    width=48,
    steps=12,
    guidance_scale=4.0,
    guidance_scale_2=3.0,
    flow_shift=5.0,
    seed=7,
    output="frames",
)


class Guided(WanPipeline):
    """diffusers' pipeline with one of its guiders deciding which steps have guidance."""

    guider: ClassifierFreeGuidance

    @property
    def do_classifier_free_guidance(self) -> bool:
        if self.current_timestep is None:  # the prompts are being encoded
            return True
        timesteps = self.scheduler.timesteps.tolist()
        step = timesteps.index(float(self.current_timestep))
        self.guider.set_state(step=step, num_inference_steps=len(timesteps), timestep=None)
        return bool(self.guider.num_conditions == 2)


def reference(checkpoint: Path, request: TextToVideoRequest) -> np.ndarray:
    """Run diffusers' pipeline with its own guider and cache; return uint8 frames."""
    pipeline = Guided.from_pretrained(checkpoint)
    pipeline.guider = ClassifierFreeGuidance(
        request.guidance_scale, start=request.guidance_start, stop=request.guidance_stop
    )
    if request.cache_threshold is not None:
        for transformer in (pipeline.transformer, pipeline.transformer_2):
            transformer.enable_cache(FirstBlockCacheConfig(threshold=request.cache_threshold))
    return frames_of_pipeline(pipeline, request)


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


class ToldModels(InProcessModels):
    """Served models in this process that write down each hit and miss."""

    def __init__(self, repository: Path) -> None:
        super().__init__(repository, threads=2)
        self.hits: list[bool] = []

    def stream(self, *args: Any, **options: Any) -> Iterator[dict[str, Any]]:
        for answer in super().stream(*args, **options):
            if "cached" in answer:
                self.hits.append(bool(answer["cached"][0]))
            yield answer


def frames_of(client: Client, request: TextToVideoRequest) -> Frames:
    *_, result = client.generate(request)
    assert isinstance(result, Frames)
    return result


@pytest.fixture(scope="module")
def cached_repository(checkpoint: Path, shared: Path) -> Path:
    """The tiny checkpoint with cut denoisers."""
    return cached_export(shared, checkpoint)


@pytest.fixture(scope="module")
def cached_server(cached_repository: Path) -> Iterator[Server]:
    """A Triton that serves them."""
    with Server(ServerConfig(cached_repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture
def client(cached_server: Server) -> Iterator[Client]:
    with Client(cached_server.grpc_url) as connected:
        yield connected


@pytest.mark.parametrize(("start", "stop"), [(0.0, 0.5), (0.25, 0.75), (0.5, 1.0)])
def test_guidance_interval_equals_diffusers_guider(
    server: Server, checkpoint: Path, start: float, stop: float
) -> None:
    request = replace(REQUEST, guidance_start=start, guidance_stop=stop)
    with Client(server.grpc_url) as client:
        part, full = frames_of(client, request).array, frames_of(client, REQUEST).array
    theirs, loss = psnr(part, reference(checkpoint, request)), psnr(part, full)
    print(
        f"guidance {start} to {stop}: PSNR {theirs:.1f} dB to diffusers, {loss:.1f} dB to guidance throughout"
    )
    assert theirs >= 45
    # Random weights heed the prompt strongly; what guidance leaves out must show, and not be noise alone.
    assert 12 < loss < 45


def test_cut_denoisers_equal_diffusers_when_no_cache_is_asked_for(client: Client, checkpoint: Path) -> None:
    result = frames_of(client, REQUEST)
    assert result.cache_hit_rate is None
    assert psnr(result.array, reference(checkpoint, REQUEST)) >= 45


def test_nothing_is_reused_when_the_threshold_is_zero(client: Client) -> None:
    none, full = frames_of(client, replace(REQUEST, cache_threshold=0.0)), frames_of(client, REQUEST)
    assert none.cache_hit_rate == 0
    assert psnr(none.array, full.array) >= 60


@pytest.mark.parametrize(("threshold", "least_db"), [(0.05, 40), (0.1, 32), (0.2, 25)])
def test_cache_equals_diffusers_cache(
    client: Client, checkpoint: Path, their_hits: list[bool], threshold: float, least_db: float
) -> None:
    request = replace(REQUEST, cache_threshold=threshold)
    ours, full = frames_of(client, request), frames_of(client, REQUEST)
    expected = reference(checkpoint, request)
    assert ours.cache_hit_rate is not None and 0 < ours.cache_hit_rate < 1
    theirs, loss = psnr(ours.array, expected), psnr(ours.array, full.array)
    print(
        f"threshold {threshold}: hit rate {ours.cache_hit_rate:.3f}, PSNR {theirs:.1f} dB to diffusers, "
        f"{loss:.1f} dB to the full computation"
    )
    assert ours.cache_hit_rate == pytest.approx(np.mean(their_hits))
    assert theirs >= 45
    assert loss >= least_db


def test_every_hit_is_a_hit_in_diffusers_and_both_speedups_work_together(
    cached_repository: Path, checkpoint: Path, their_hits: list[bool]
) -> None:
    request = replace(REQUEST, cache_threshold=0.1, guidance_start=0.25, guidance_stop=0.75)
    models = ToldModels(cached_repository)
    facts = PipelineFacts.read(cached_repository / "wan_t2v" / "1" / "pipeline.json")
    *_, last = generate(request, facts, models, Interruption("wan_t2v", lambda: False))
    models.close()
    reference(checkpoint, request)
    assert models.hits == their_hits
    assert len(models.hits) == 12 + 6
    assert last.cache_hit_rate == np.mean(their_hits)


def test_caches_are_freed_when_videos_are_cancelled(client: Client) -> None:
    """Four caches fit into a denoiser; a video that leaves its two behind would soon make it refuse."""
    request = replace(REQUEST, cache_threshold=0.05)
    expected = frames_of(client, request).array
    for _ in range(4):
        events = client.generate(replace(request, steps=50))
        while not (isinstance(event := next(events), Progress) and event.step == 3):
            pass
        events.close()
    np.testing.assert_array_equal(frames_of(client, request).array, expected)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_video_comes_with_its_hit_rate(cached_server: Server, protocol: Any) -> None:
    url = cached_server.grpc_url if protocol == "grpc" else cached_server.http_url
    with Client(url, protocol) as client:
        *_, result = client.generate(replace(REQUEST, cache_threshold=0.1, output="video"))
    assert isinstance(result, Video)
    assert result.cache_hit_rate is not None and 0 < result.cache_hit_rate < 1


def test_command_prints_the_hit_rate(
    cached_server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--frames 5 --size 64x64 --steps 8 --guidance-start 0.1 --guidance-stop 0.9 --cache-threshold 9"
    place = ["--output", str(tmp_path / "out.npy"), "--url", cached_server.grpc_url]
    assert root.run(["generate", "wan_t2v", "a lake", *flags.split(), *place]) == 0
    assert ", cache hit rate " in capsys.readouterr().out


def test_threshold_is_refused_when_the_repository_has_no_cache(server: Server) -> None:
    with (
        Client(server.grpc_url) as client,
        pytest.raises(
            InvalidRequest, match="cache_threshold must be left out .* --variant first-block-cache"
        ),
    ):
        list(client.generate(replace(REQUEST, cache_threshold=0.1)))


def test_denoiser_refuses_a_threshold_without_a_session(client: Client) -> None:
    tensors = {
        "hidden_states": np.zeros((1, 16, 1, 4, 4), np.float32),
        "timestep": np.zeros((1, 1), np.float32),
        "encoder_hidden_states": np.zeros((1, 512, 32), np.float32),
    }
    assert client.infer("wan_t2v_denoiser_high", tensors)["sample"].shape == (1, 16, 1, 4, 4)
    with pytest.raises(InvalidRequest, match="cache_threshold must be given in a session, and only there"):
        client.infer("wan_t2v_denoiser_high", tensors | {"cache_threshold": np.array([0.1], np.float32)})


def test_manifest_and_facts_tell_the_variant(cached_repository: Path, repository: Path) -> None:
    told = [
        (
            json.loads((folder / "wan_t2v_denoiser_low" / "manifest.json").read_text()).get("variant"),
            json.loads((folder / "wan_t2v" / "1" / "pipeline.json").read_text()).get("first_block_cache"),
        )
        for folder in (cached_repository, repository)
    ]
    assert told == [("first-block-cache", True), (None, None)]
