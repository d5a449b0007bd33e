"""Videos stopped and continued on real servers: the same, a restarted one, another one, another engine."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from framepack_fixtures import small_repository
from gate import without_spares
from stopped_videos import EULER, Answer, cached_export, equal, in_pieces, served, with_scheduler
from wan_reference import psnr

from slipway_client import Client, ImageToVideoRequest, InvalidRequest, TextToVideoRequest
from slipway_export.engines.requested import TorchRequest
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Engine, Precision
from slipway_serving.protocol.diffusion.stopping import ContactSheet, DenoisingRequest
from slipway_serving.protocol.events import FramesPart, VideoPart
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

# UniPC's timesteps at 8 steps and a shift of 3 are 999, 954, ...: the low-noise expert takes over at step 4.
WAN = TextToVideoRequest(
    "a lake", negative_prompt="blur", frames=9, height=32, width=48, steps=8, seed=3, guidance_scale_2=3.0,
    output="frames",
)  # fmt: skip
PICTURE = np.random.default_rng(0).integers(0, 255, (32, 48, 3), dtype=np.uint8)
FRAMEPACK = ImageToVideoRequest(
    image=PICTURE, prompt="it moves", seconds=2.4, steps=3, height=32, width=48, seed=5, output="frames"
)
DENOISERS = ("denoiser_high", "denoiser_low")


def serve(repository: Path) -> Server:
    return Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0))


@pytest.fixture(scope="module")
def models(repository: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both families in one repository."""
    both = Path(shutil.copytree(repository, tmp_path_factory.mktemp("both") / "models"))
    for model in small_repository(shared)[0].iterdir():
        if not (both / model.name).exists():
            shutil.copytree(model, both / model.name)
    for pipeline in ("wan_t2v", "framepack_i2v"):
        # Nobody waits here, and each instance takes 0.3 GB.
        without_spares(both / pipeline / "config.pbtxt")
    return both


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Server]:
    with serve(models) as running:
        yield running


@pytest.fixture(scope="module")
def second(models: Path) -> Iterator[Server]:
    with serve(models) as running:
        yield running


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    url = server.grpc_url if request.param == "grpc" else server.http_url
    with Client(url, request.param) as connected:
        yield connected


@pytest.mark.parametrize("stops", [[1], [3], [4], [5], [8], [2, 4, 5, 7]], ids=str)
@pytest.mark.parametrize("changes", [{}, {"guidance_start": 0.2, "guidance_stop": 0.6}], ids=["all", "part"])
def test_wan_is_equal_when_it_is_stopped_around_the_change_of_experts(
    client: Client, stops: list[int], changes: dict[str, float]
) -> None:
    request = replace(WAN, **changes)
    assert equal(in_pieces(partial(served, client), request, stops), served(client, request))


@pytest.mark.parametrize("order", ["inverted", "forward"])
@pytest.mark.parametrize("stops", [[1], [3], [4], [6], [2, 3, 5]], ids=str)
def test_framepack_is_equal_when_it_is_stopped_within_a_section(
    client: Client, order: str, stops: list[int]
) -> None:
    request = replace(FRAMEPACK, order=order)
    assert equal(in_pieces(partial(served, client), request, stops), served(client, request))


def test_two_prompts_are_equal_when_both_are_stopped_at_a_time(server: Server) -> None:
    requests = [WAN, replace(WAN, prompt="a red ball", seed=4)]
    with Client(server.grpc_url) as own:
        whole = [served(own, request) for request in requests]
    pieces: dict[int, Answer] = {}

    def run(number: int) -> None:
        with Client(server.grpc_url) as own:
            pieces[number] = in_pieces(partial(served, own), requests[number], [2, 5])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(equal(pieces[number], whole[number]) for number in range(2))
    assert not np.array_equal(whole[0].video, whole[1].video)


@pytest.mark.parametrize("request_", [WAN, FRAMEPACK], ids=["wan", "framepack"])
def test_video_is_equal_when_another_server_continues_it(
    server: Server, second: Server, request_: DenoisingRequest
) -> None:
    with Client(server.grpc_url) as here, Client(second.http_url, "http") as there:
        runs = itertools.cycle([partial(served, here), partial(served, there)])
        assert equal(in_pieces(runs, request_, [1, 2, 4]), served(here, request_))


def test_video_is_equal_when_a_restarted_server_continues_it(models: Path) -> None:
    with serve(models) as first, Client(first.grpc_url) as client:
        whole = served(client, WAN)
        stopped = served(client, replace(WAN, stop_after_step=4))
    with serve(models) as again, Client(again.grpc_url) as client:
        rest = served(client, replace(WAN, continue_from=stopped.state))
    assert rest.continued is not None
    assert (rest.continued.continued_step, rest.continued.same_engine) == (4, True)
    assert np.array_equal(rest.video, whole.video)


def test_state_that_comes_while_the_video_goes_on_continues_it(server: Server) -> None:
    with Client(server.grpc_url) as client:
        going_on = served(client, replace(WAN, checkpoint_every_steps=3))
        assert going_on.steps == [*range(1, 9)]
        rest = served(client, replace(WAN, continue_from=going_on.state))
    assert rest.steps == [7, 8]
    assert np.array_equal(rest.video, going_on.video)


def test_only_the_state_need_be_sent_when_nothing_changes(server: Server) -> None:
    with Client(server.grpc_url) as client:
        whole, stopped = served(client, WAN), served(client, replace(WAN, stop_after_step=4))
        raw = {
            "continue_from": np.array([stopped.state], np.object_),
            "output": np.array([b"frames"], np.object_),
        }
        frames = [
            response["frames"]
            for response in client._transport.stream("wan_t2v", raw, _unlimited())
            if "frames" in response
        ]
    assert np.array_equal(np.concatenate(frames), whole.video)


def test_prompt_and_delivery_may_change_and_other_fields_not(server: Server) -> None:
    with Client(server.grpc_url) as client:
        whole, stopped = served(client, WAN), served(client, replace(WAN, stop_after_step=4))
        other = served(client, replace(WAN, prompt="a red ball", continue_from=stopped.state))
        assert other.steps == [5, 6, 7, 8]
        assert not np.array_equal(other.video, whole.video)
        mp4 = served(client, replace(WAN, output="video", fps=24, continue_from=stopped.state))
        assert any(isinstance(event, VideoPart) for event in mp4.events)
        for changes in (
            {"seed": 4},
            {"steps": 9},
            {"width": 32},
            {"flow_shift": 2.0},
            {"cache_threshold": 0.1},
        ):
            with pytest.raises(InvalidRequest, match=f"{next(iter(changes))} must be"):
                served(client, replace(WAN, continue_from=stopped.state, **changes))
        with pytest.raises(InvalidRequest, match="stop_after_step must be after the step of the state, 4"):
            served(client, replace(WAN, continue_from=stopped.state, stop_after_step=4))


def test_draft_shows_the_video_as_it_is_predicted_at_the_stop(client: Client) -> None:
    whole = served(client, WAN)
    similar = []
    for step in (2, 7):
        stopped = served(client, replace(WAN, stop_after_step=step, draft="video"))
        parts = [event for event in stopped.events if isinstance(event, FramesPart)]
        assert {part.draft_step for part in parts} == {step}
        draft = np.concatenate([part.pixels for part in parts])
        assert draft.shape == whole.video.shape
        similar.append(psnr(draft, whole.video))
    assert similar[1] > similar[0]
    stopped = served(client, replace(WAN, stop_after_step=5, draft="sheet"))
    (sheet,) = [event for event in stopped.events if isinstance(event, ContactSheet)]
    with av.open(_file(sheet.sheet)) as picture:
        (frame,) = picture.decode(video=0)
    assert (frame.width, frame.height, sheet.draft_step) == (3 * 48, 3 * 32, 5)


def test_draft_of_a_section_is_sent_when_a_section_is_stopped(server: Server) -> None:
    with Client(server.grpc_url) as client:
        stopped = served(client, replace(FRAMEPACK, stop_after_step=4, draft="video"))
    drafts = [e for e in stopped.events if isinstance(e, FramesPart) and e.draft_step == 4]
    assert sum(len(part.pixels) for part in drafts) >= 36


@pytest.mark.parametrize(
    "kind",
    [
        "euler",
        "cached",
        "torch",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("torch-int8", "int8")),
    ],
)
def test_wan_is_equal_with_every_scheduler_cache_engine_and_precision(
    kind: str, checkpoint: Path, repository: Path, shared: Path, tmp_path: Path
) -> None:
    models = with_engine(kind, checkpoint, repository, shared, tmp_path)
    request = replace(WAN, cache_threshold=0.3) if kind == "cached" else WAN
    with serve(models) as running, Client(running.grpc_url) as client:
        whole = served(client, request)
        for stops in ([3], [4], [5], [1, 2, 6, 8]):
            assert equal(in_pieces(partial(served, client), request, stops), whole), stops
        if kind == "torch":
            continued_on_another_engine(client, whole, repository)
        if kind == "int8":
            refused_for_its_precision(client, repository)


def with_engine(kind: str, checkpoint: Path, repository: Path, shared: Path, folder: Path) -> Path:
    """Return a repository whose denoisers are of a kind."""
    if kind == "euler":
        return with_scheduler(repository, folder / "models", EULER)
    if kind == "cached":
        return cached_export(shared, checkpoint)
    copy = Path(shutil.copytree(repository, folder / "models"))
    options: dict[str, dict[str, Any]] = {
        "torch": {"engine": Engine.TORCH},
        "torch-int8": {"engine": Engine.TORCH, "torch": TorchRequest(weights={"": "int8"})},
        "int8": {"precision": Precision.INT8},
    }
    run_export(
        family_named("wan_t2v"), ExportOptions(str(checkpoint), copy, components=DENOISERS, **options[kind])
    )
    return copy


def continued_on_another_engine(client: Client, whole: Answer, repository: Path) -> None:
    """Check that ONNX Runtime continues a video of PyTorch, within its bound, and says so."""
    stopped = served(client, replace(WAN, stop_after_step=5))
    with serve(repository) as other, Client(other.grpc_url) as there:
        rest = served(there, replace(WAN, continue_from=stopped.state))
    assert rest.continued is not None
    assert not rest.continued.same_engine
    assert "wan_t2v_denoiser_low torch fp32" in rest.continued.engines
    assert "-> wan_t2v_denoiser_high onnxruntime fp32" in rest.continued.engines
    assert psnr(rest.video, whole.video) > 50


def refused_for_its_precision(client: Client, repository: Path) -> None:
    stopped = served(client, replace(WAN, stop_after_step=5))
    with (
        serve(repository) as other,
        Client(other.grpc_url) as there,
        pytest.raises(InvalidRequest, match="made with the precision of wan_t2v_denoiser_high, fp32"),
    ):
        served(there, replace(WAN, continue_from=stopped.state))


def _unlimited() -> Any:
    from slipway_client.retry import UNLIMITED

    return UNLIMITED


def _file(data: bytes) -> Any:
    import io

    return io.BytesIO(data)
