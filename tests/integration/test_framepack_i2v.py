"""Served videos of `framepack_i2v` against diffusers' pipeline on the same checkpoint, and their promises."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import pytest
import torch
from diffusers import HunyuanVideoFramepackPipeline
from framepack_fixtures import small_checkpoint, small_repository
from load_environment import assert_all_answered, load_environment
from PIL import Image
from server_fixtures import loading_warnings
from wan_reference import psnr

from slipway_cli.root import run
from slipway_client import AsyncClient, Client, Frames, FramesPart, InvalidRequest, Progress, Video, VideoPart
from slipway_serving.families.framepack_i2v.request import ImageToVideoRequest
from slipway_serving.protocol.images import pixels
from slipway_serving.triton.server import Server, ServerConfig

UPSTREAM = {"inverted": "inverted_anti_drifting", "forward": "vanilla"}
# Of the video's aspect, in patches of colour, and larger.
PICTURE = np.random.default_rng(3).integers(0, 256, (8, 12, 3), np.uint8).repeat(8, 0).repeat(8, 1)
REQUEST = ImageToVideoRequest(
    image=PICTURE,
    prompt="A paper boat sails down a rainy street.",
    seconds=3.6,
    height=32,
    width=48,
    steps=2,
    guidance_scale=9.0,
    seed=7,
    output="frames",
)
ONE_SECTION = replace(REQUEST, seconds=1.0)


@pytest.fixture(scope="module")
def upstream(shared: Path) -> HunyuanVideoFramepackPipeline:
    pipeline = HunyuanVideoFramepackPipeline.from_pretrained(small_checkpoint(shared))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module")
def server(shared: Path) -> Iterator[Server]:
    repository, _ = small_repository(shared)
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.grpc_url) as connected:
        yield connected


def reference(pipeline: HunyuanVideoFramepackPipeline, request: ImageToVideoRequest) -> np.ndarray:
    """Run diffusers' pipeline; return uint8 frames as it would write them."""
    output = pipeline(
        image=Image.fromarray(pixels(request.image)),
        prompt=request.prompt,
        height=request.height,
        width=request.width,
        num_frames=33 * request.sections,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance_scale,
        generator=torch.Generator("cpu").manual_seed(request.seed),
        sampling_type=UPSTREAM[request.order],
        output_type="np",
    )
    return (output.frames[0] * 255).round().astype(np.uint8)


def frames_of(client: Client, request: ImageToVideoRequest) -> np.ndarray:
    *_, result = client.generate(request)
    assert isinstance(result, Frames)
    return result.array


def pictures(data: bytes) -> np.ndarray:
    """Return the frames of a file, which must be evenly spaced in time."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        assert (stream.codec_context.name, stream.average_rate) == ("h264", 30)
    times = [round(30 * frame.pts * frame.time_base) for frame in frames]
    assert times == list(range(len(frames)))
    return np.array([frame.to_ndarray(format="rgb24") for frame in frames])


@pytest.mark.parametrize("order", UPSTREAM)
def test_served_video_equals_diffusers_when_it_has_three_sections(
    client: Client, upstream: HunyuanVideoFramepackPipeline, order: str
) -> None:
    request = replace(REQUEST, order=order)
    *progress, result = client.generate(request)
    assert isinstance(result, Frames)
    assert [(event.step, event.steps) for event in progress] == [(step, 6) for step in range(1, 7)]
    expected = reference(upstream, request)
    assert result.array.shape == expected.shape == (109, 32, 48, 3)
    assert expected.std() > 20
    print(f"PSNR {psnr(result.array, expected):.1f} dB")
    assert psnr(result.array, expected) >= 45


def test_comparison_with_diffusers_can_fail(client: Client, upstream: HunyuanVideoFramepackPipeline) -> None:
    """What a wrong seed, picture, prompt, guidance or number of steps would look like is below the bound."""
    expected = reference(upstream, ONE_SECTION)
    assert psnr(frames_of(client, ONE_SECTION), expected) >= 45
    for wrong in (
        replace(ONE_SECTION, seed=8),
        replace(ONE_SECTION, image=PICTURE[::-1].copy()),
        replace(ONE_SECTION, prompt="a fox"),
        replace(ONE_SECTION, guidance_scale=5.0),
        replace(ONE_SECTION, steps=3),
    ):
        found = psnr(frames_of(client, wrong), expected)
        print(f"{found:.1f} dB")
        assert found < 45


def test_video_of_a_picture_of_one_colour_equals_diffusers(
    client: Client, upstream: HunyuanVideoFramepackPipeline
) -> None:
    """Groups of the VAE's channels do not vary there, which a graph may divide by."""
    request = replace(ONE_SECTION, image=np.zeros_like(PICTURE))
    assert psnr(frames_of(client, request), reference(upstream, request)) >= 45


def test_frames_come_section_by_section_where_they_belong(client: Client) -> None:
    """Last section first; what the next one blends over comes twice, and the file has the same frames."""
    request = replace(REQUEST, seconds=2.4)
    events = list(client.stream(request))
    parts = [event for event in events if isinstance(event, FramesPart)]
    assert [(part.first_frame, len(part.pixels), part.final) for part in parts] == [
        (40, 33, False), (0, 73, True)
    ]  # fmt: skip
    assert {part.frames_total for part in parts} == {73}
    kinds = [type(event) for event in events]
    assert kinds == [Progress, Progress, FramesPart] * 2
    whole = parts[1].pixels
    video = list(client.stream(replace(request, output="video", order="forward")))
    pieces = [event for event in video if isinstance(event, VideoPart)]
    assert [(piece.first_frame, piece.part_frames) for piece in pieces] == [(0, 4), (4, 69)]
    *_, result = client.generate(replace(request, output="video"))
    assert isinstance(result, Video)
    assert psnr(pictures(result.data), whole) > 20
    assert psnr(pictures(result.data), whole[::-1]) < psnr(pictures(result.data), whole) - 3


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_command_writes_a_video_in_time_order(
    server: Server, tmp_path: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(PICTURE).save(tmp_path / "photo.png")
    url = server.grpc_url if protocol == "grpc" else server.http_url
    words = f"generate framepack_i2v --seconds 2.4 --size 48x32 --steps 1 --url {url} --protocol {protocol}"
    files = ["--image", str(tmp_path / "photo.png"), "--output", str(tmp_path / "out.mp4")]
    assert run([*words.split(), *files, "A paper boat."]) == 0
    assert "out.mp4: 73 frames, 48x32, 30 fps, generated in" in capsys.readouterr().out
    assert pictures((tmp_path / "out.mp4").read_bytes()).shape == (73, 32, 48, 3)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_async_client_gets_the_same_video(server: Server, client: Client, protocol: Any) -> None:
    async def ask() -> Any:
        url = server.grpc_url if protocol == "grpc" else server.http_url
        async with AsyncClient(url, protocol) as connected:
            return [event async for event in connected.generate(ONE_SECTION)][-1]

    np.testing.assert_array_equal(asyncio.run(ask()).array, frames_of(client, ONE_SECTION))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_frames_of_the_first_section_stay_when_the_second_is_cancelled(
    server: Server, client: Client, protocol: Literal["grpc", "http"]
) -> None:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    kept: list[FramesPart] = []
    with Client(url, protocol) as own, closing(own.stream(replace(REQUEST, seconds=120.0))) as events:
        for event in events:
            if isinstance(event, FramesPart):
                kept.append(event)
            elif isinstance(event, Progress) and event.step > REQUEST.steps:
                break
    assert [(part.first_frame, len(part.pixels), part.final) for part in kept] == [(3568, 33, False)]
    assert kept[0].pixels.std() > 20
    assert frames_of(client, replace(ONE_SECTION, steps=1)).shape == (37, 32, 48, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"height": 640, "width": 640}, "height must be 16 to 96 px, the range of the exported models"),
        ({"prompt": "a boat " * 200}, "prompt must be at most 256 tokens, end tokens included, got"),
    ],
)  # fmt: skip
def test_server_refuses_by_field_what_its_models_cannot_do(
    client: Client, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        list(client.generate(replace(REQUEST, **fields)))


def test_triton_log_has_no_warning_about_our_models_when_they_are_loaded(server: Server) -> None:
    assert loading_warnings(server.log_text()) == []


def test_videos_of_pictures_are_answered_when_locust_asks_for_them(
    server: Server, shared: Path, tmp_path: Path
) -> None:
    sizes = {"height": 32, "width": 48, "steps": 2, "seconds": 1.0}
    fields = " ".join(f"--field framepack_i2v.{name}={size}" for name, size in sizes.items())
    line = f"--family framepack_i2v {fields} --users 2 --seconds 3"
    done = load_environment(shared).load(tmp_path, server.grpc_url, line)
    measures = ("first_progress_s", "step_s", "first_frame_s", "queue_s", "service_s")
    assert_all_answered(done, "framepack_i2v", *measures)
