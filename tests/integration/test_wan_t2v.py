"""The served pipeline against diffusers' on the same checkpoint, and its promises to callers."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from diffusers import WanPipeline
from exported_graphs import check_opset
from server_fixtures import loading_warnings
from wan_reference import frames_of_pipeline, psnr

from slipway_client import Client, Frames, Progress, TextToVideoRequest, Video
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.triton.server import Server, ServerConfig

REQUEST = TextToVideoRequest(
    prompt="  A serene   lake at sunset &amp; a paper boat ",
    negative_prompt="blurry, static",
    frames=13,
    height=112,
    width=48,
    steps=6,
    guidance_scale=4.0,
    guidance_scale_2=3.0,
    flow_shift=5.0,
    seed=7,
    output="frames",
)
OTHER_SIZE = replace(REQUEST, frames=21, height=80, width=112, seed=2**32 - 1)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.grpc_url) as connected:
        yield connected


def result_of(client: Client, request: TextToVideoRequest) -> Any:
    *_, last = client.generate(request)
    return last


def frames_of(client: Client, request: TextToVideoRequest) -> np.ndarray:
    result = result_of(client, request)
    assert isinstance(result, Frames)
    return result.array


def reference(checkpoint: Path, request: TextToVideoRequest) -> np.ndarray:
    """Run diffusers' pipeline; return uint8 frames as it would write them."""
    return frames_of_pipeline(WanPipeline.from_pretrained(checkpoint), request)


@pytest.mark.parametrize(
    "request_",
    [
        REQUEST,
        OTHER_SIZE,
        replace(REQUEST, guidance_scale=1.0, guidance_scale_2=None),
        replace(OTHER_SIZE, guidance_scale_2=None, flow_shift=None, prompt="", negative_prompt=""),
        replace(REQUEST, frames=1, steps=1),
    ],
    ids=["48x112x13", "112x80x21", "guidance 1", "empty prompt and defaults", "one frame, one step"],
)
def test_served_frames_equal_diffusers(
    client: Client, checkpoint: Path, request_: TextToVideoRequest
) -> None:
    actual = frames_of(client, request_)
    expected = reference(checkpoint, request_)
    assert actual.shape == expected.shape == (request_.frames, request_.height, request_.width, 3)
    print(f"PSNR {psnr(actual, expected):.1f} dB")
    assert psnr(actual, expected) >= 45


def test_comparison_with_diffusers_can_fail(client: Client, checkpoint: Path) -> None:
    """What a wrong seed, prompt, expert or schedule would look like is far below the bound."""
    expected = reference(checkpoint, REQUEST)
    assert expected.std() > 20
    for wrong in (
        replace(REQUEST, seed=8),
        replace(REQUEST, prompt="a fox"),
        replace(REQUEST, negative_prompt=""),
        replace(REQUEST, guidance_scale_2=4.0),
        replace(REQUEST, flow_shift=3.0),
    ):
        assert psnr(frames_of(client, wrong), expected) < 45


@pytest.fixture(scope="module")
def server_of_one_expert(one_expert: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Triton that serves the checkpoint without transformer_2."""
    models = tmp_path_factory.mktemp("one_expert") / "repository"
    # At the oldest opset, so that one export shows both.
    run_export(family_named("wan_t2v"), ExportOptions(str(one_expert), models, opset=17))
    assert not (models / "wan_t2v_denoiser_low").exists()
    with Server(ServerConfig(models, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.mark.long
def test_checkpoint_without_second_transformer_equals_diffusers(
    one_expert: Path, server_of_one_expert: Server
) -> None:
    checkpoint = one_expert
    with Client(server_of_one_expert.grpc_url) as client:
        for guidance_scale, request in ((4.0, REQUEST), (4.0, OTHER_SIZE), (1.0, REQUEST)):
            asked = replace(request, guidance_scale=guidance_scale, guidance_scale_2=None)
            assert psnr(frames_of(client, asked), reference(checkpoint, asked)) >= 45
        with pytest.raises(InvalidRequest, match="guidance_scale_2 must be left out"):
            list(client.generate(REQUEST))


@pytest.mark.long
def test_every_component_is_of_opset_17_when_it_was_exported_so(server_of_one_expert: Server) -> None:
    check_opset(server_of_one_expert.config.repository, 17, ir_version=8)


def test_same_seed_gives_same_bytes_and_other_seed_others(client: Client) -> None:
    request = replace(REQUEST, output="video")
    first, second, third = (
        result_of(client, asked).data for asked in (request, request, replace(request, seed=8))
    )
    assert first == second
    assert first != third


def test_concurrent_requests_do_not_disturb_each_other(server: Server, client: Client) -> None:
    requests = [REQUEST, replace(OTHER_SIZE, steps=4), replace(REQUEST, seed=9)]
    alone = [frames_of(client, request) for request in requests]
    together: dict[int, np.ndarray] = {}

    def run(i: int) -> None:
        with Client(server.grpc_url) as own:
            together[i] = frames_of(own, requests[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    for i, expected in enumerate(alone):
        np.testing.assert_array_equal(together[i], expected)


def test_one_progress_per_step_in_order_then_one_result(client: Client) -> None:
    *progress, result = client.generate(replace(REQUEST, preview=True))
    assert isinstance(result, Frames)
    assert all(isinstance(event, Progress) for event in progress)
    assert [event.step for event in progress] == [1, 2, 3, 4, 5, 6]
    assert {event.steps for event in progress} == {6}
    elapsed = [event.elapsed_s for event in progress]
    assert elapsed == sorted(elapsed)
    assert {event.preview.shape for event in progress} == {(112 // 8, 48 // 8, 3)}


def test_preview_of_the_last_step_resembles_the_result(client: Client) -> None:
    *progress, result = client.generate(replace(REQUEST, preview=True))
    preview = progress[-1].preview.astype(np.float64)
    # Latent frame 2 of 4 is the middle one; it becomes the frames 5 to 8.
    middle = result.array[5:9].astype(np.float64)
    pooled = middle.reshape(4, 14, 8, 6, 8, 3).mean(axis=(0, 2, 4))
    assert np.corrcoef(preview.ravel(), pooled.ravel())[0, 1] > 0.5


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_video_has_the_asked_frames_size_and_rate(server: Server, protocol: Any) -> None:
    request = replace(REQUEST, fps=12, output="video" if protocol == "grpc" else "video_base64")
    with Client(server.grpc_url if protocol == "grpc" else server.http_url, protocol) as client:
        result = result_of(client, request)
    assert isinstance(result, Video)
    with av.open(io.BytesIO(result.data)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.average_rate == 12
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert np.array(pictures).shape == (13, 112, 48, 3)


def test_video_is_the_frames(client: Client) -> None:
    """Noise compresses badly; a video of another seed would be off by far more."""
    frames = frames_of(client, REQUEST)
    video = result_of(client, replace(REQUEST, output="video"))
    with av.open(io.BytesIO(video.data)) as container:
        pictures = np.array([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    assert psnr(pictures, frames) > 17
    assert psnr(pictures, frames_of(client, replace(REQUEST, seed=8))) < 13


def test_triton_log_has_no_warning_about_our_models_when_they_are_loaded(server: Server) -> None:
    assert loading_warnings(server.log_text()) == []
