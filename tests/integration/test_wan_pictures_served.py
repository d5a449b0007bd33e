"""Wan checkpoints that take pictures, served by Triton, against diffusers' own pipelines."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from distilled_wan import distilled_frames
from gateway_fixtures import mp4_frames, running_gateway
from numpy.typing import NDArray
from PIL import Image
from tiny_exports import checkpoint_once, exported_once
from wan_reference import frames_of_pipeline, picture, pipeline_for, psnr

from slipway_cli.videos.making import Session
from slipway_client import Client, Frames, TextToVideoRequest, Video
from slipway_client.address import address_of
from slipway_export.spec import Axis, Engine
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

REQUEST = TextToVideoRequest(
    "A paper boat sails down a rainy street.",
    negative_prompt="blurry",
    frames=9,
    height=96,
    width=64,
    steps=4,
    seed=7,
    output="frames",
)
AXES = (Axis("latent_frames", 1, 2, 3), Axis("token_height", 2, 3, 3), Axis("token_width", 2, 2, 4))
PICTURE = picture(96, 64)
FROM_PICTURE = replace(REQUEST, image=PICTURE)
EXPERTS = replace(REQUEST, height=48, width=64, guidance_scale_2=3.0, image=picture(48, 64))


@dataclass(frozen=True)
class Served:
    """A checkpoint, and a client and the address of the Triton that serves it."""

    checkpoint: Path
    client: Client
    url: str

    def frames(self, request: TextToVideoRequest) -> NDArray[np.uint8]:
        *_, last = self.client.generate(request)
        assert isinstance(last, Frames)
        return last.array

    def check(self, request: TextToVideoRequest, others: Mapping[str, TextToVideoRequest]) -> None:
        """Check that frames equal diffusers', and that those of other requests are far from them."""
        expected = frames_of_pipeline(pipeline_for(self.checkpoint, request), request)
        assert expected.std() > 20
        found = self.frames(request)
        assert found.shape == expected.shape
        print(f"PSNR {psnr(found, expected):.1f} dB")
        assert psnr(found, expected) >= 60
        for name, other in others.items():
            assert psnr(self.frames(other), expected) < 45, name


def png(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def served(shared: Path, preset: str, **engines: Engine) -> Iterator[Served]:
    """Serve a preset's checkpoint by a real Triton."""
    checkpoint = checkpoint_once(shared, "wan_t2v", preset)
    models, _ = exported_once(shared, "wan_t2v", str(checkpoint), axes=AXES, engines=engines)
    with (
        Server(ServerConfig(models, http_port=0, grpc_port=0, metrics_port=0)) as running,
        Client(running.grpc_url) as client,
    ):
        yield Served(checkpoint, client, running.grpc_url)


@pytest.fixture(scope="module")
def ti2v(shared: Path) -> Iterator[Served]:
    yield from served(shared, "tiny-ti2v")


@pytest.fixture(scope="module")
def i2v(shared: Path) -> Iterator[Served]:
    yield from served(shared, "tiny-i2v")


@pytest.mark.long
def test_served_video_from_text_equals_diffusers_when_the_checkpoint_is_ti2v(ti2v: Served) -> None:
    ti2v.check(REQUEST, {"seed": replace(REQUEST, seed=8), "image": FROM_PICTURE})


def test_served_video_from_a_picture_equals_diffusers_when_the_checkpoint_is_ti2v(ti2v: Served) -> None:
    ti2v.check(FROM_PICTURE, {"image": replace(FROM_PICTURE, image=255 - PICTURE)})


@pytest.mark.long
def test_served_video_from_a_picture_equals_diffusers_when_the_checkpoint_is_i2v(i2v: Served) -> None:
    assert isinstance(EXPERTS.image, np.ndarray)
    others = {
        "image": replace(EXPERTS, image=255 - EXPERTS.image),
        "guidance": replace(EXPERTS, guidance_scale_2=4.0),
    }
    i2v.check(EXPERTS, others)


@pytest.mark.long
def test_served_video_is_the_same_when_the_picture_is_a_file(i2v: Served) -> None:
    assert isinstance(EXPERTS.image, np.ndarray)
    of_file = i2v.frames(replace(EXPERTS, image=png(EXPERTS.image)))
    np.testing.assert_array_equal(of_file, i2v.frames(EXPERTS))


@pytest.mark.long
def test_request_without_a_picture_is_refused_when_the_served_checkpoint_is_i2v(i2v: Served) -> None:
    with pytest.raises(InvalidRequest, match="image must be given for an image-to-video checkpoint, got no"):
        i2v.frames(replace(EXPERTS, image=None))


@pytest.mark.long
def test_served_video_between_two_pictures_equals_diffusers_when_the_checkpoint_is_i2v(i2v: Served) -> None:
    assert isinstance(EXPERTS.image, np.ndarray)
    between = replace(EXPERTS, last_image=EXPERTS.image[::-1])
    i2v.check(between, {"last_image": EXPERTS})


@pytest.mark.long
def test_served_video_from_a_picture_equals_diffusers_when_the_denoiser_sees_its_clip_embedding(
    shared: Path,
) -> None:
    request = replace(EXPERTS, guidance_scale_2=None)
    assert isinstance(request.image, np.ndarray)
    # PyTorch serves the denoiser and ONNX Runtime all else, so that one server shows both.
    for clip in served(shared, "tiny-i2v-clip", denoiser_high=Engine.TORCH):
        clip.check(request, {"image": replace(request, image=255 - request.image)})
        with pytest.raises(InvalidRequest, match="last_image must be left out for this checkpoint"):
            clip.frames(replace(request, last_image=request.image))


@pytest.mark.long
def test_served_video_between_two_pictures_equals_diffusers_when_the_checkpoint_is_flf2v(
    shared: Path,
) -> None:
    assert isinstance(EXPERTS.image, np.ndarray)
    request = replace(EXPERTS, guidance_scale_2=None, last_image=EXPERTS.image[::-1])
    for flf2v in served(shared, "tiny-flf2v"):
        flf2v.check(
            request, {"pictures": replace(request, image=request.last_image, last_image=request.image)}
        )
        with pytest.raises(InvalidRequest, match="last_image must be given for a checkpoint that joins two"):
            flf2v.frames(replace(request, last_image=None))


@pytest.mark.long
def test_gateway_makes_the_video_between_two_pictures(i2v: Served, tmp_path: Path) -> None:
    assert isinstance(EXPERTS.image, np.ndarray)
    between = replace(EXPERTS, last_image=EXPERTS.image[::-1], output="video")
    (video,) = (event for event in i2v.client.generate(between) if isinstance(event, Video))
    pictures = {"input_reference": png(EXPERTS.image), "last_image": png(EXPERTS.image[::-1])}
    names = ("prompt", "negative_prompt", "frames", "height", "width", "steps", "seed", "guidance_scale_2")
    with running_gateway([i2v.url], tmp_path) as gateway:
        created = gateway.http.post(
            "/v1/videos",
            data={name: str(getattr(between, name)) for name in names},
            files={name: (f"{name}.png", file) for name, file in pictures.items()},
        )
        assert created.status_code == 200, created.text
        job = gateway.until(created.json()["id"])
        assert job["status"] == "completed", job
        np.testing.assert_array_equal(mp4_frames(gateway.content(job["id"])), mp4_frames(video.data))
        assert gateway.content(job["id"], "input_2") == pictures["last_image"]


@pytest.mark.long
def test_served_fastwan_takes_its_three_steps_by_default_and_repeats_a_seed_bit_for_bit(
    shared: Path,
) -> None:
    request = replace(REQUEST, steps=3, guidance_scale=1.0)
    for fastwan in served(shared, "tiny-fastwan"):
        expected = distilled_frames(fastwan.checkpoint, request)
        found = fastwan.frames(request)
        print(f"PSNR {psnr(found, expected):.1f} dB")
        assert psnr(found, expected) >= 60
        assert psnr(fastwan.frames(replace(request, seed=8)), expected) < 45
        np.testing.assert_array_equal(fastwan.frames(request), found)
        session = Session(address_of(fastwan.client.url, "grpc"), None, json=False, quiet=True)
        own = session.schedule(TextToVideoRequest, {"steps", "guidance_scale"})
        assert own == {"steps": 3, "guidance_scale": 1.0}
        with pytest.raises(InvalidRequest, match="steps must be 3 for this checkpoint, which was distilled"):
            fastwan.frames(replace(request, steps=4))
