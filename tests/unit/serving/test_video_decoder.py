"""The decoder program on graphs of a few nodes: sessions, flags, what is refused and what is freed."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from slipway_serving.protocol.errors import Cancelled, InvalidRequest, Overloaded, Unrecoverable
from slipway_serving.protocol.turns import Turn
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.program import Call, Last, Settings
from slipway_serving.video.decoder import VideoDecoder

NOBODY = InProcessModels(Path("nowhere"))
LATENTS = np.random.default_rng(0).uniform(-0.3, 0.3, (1, 16, 4, 2, 3)).astype(np.float32)


def _write_graph(path: Path, frames: int, *, following: bool, start: float = 0.0) -> None:
    """Write the next cache = latents + cache; sample is its first 3 channels, repeated for each frame.

    The first cache is `start`.
    """
    shape = [1, 16, 1, "h", "w"]
    latents = helper.make_tensor_value_info("latents", TensorProto.FLOAT, shape)
    cache = helper.make_tensor_value_info("cache_00", TensorProto.FLOAT, shape)
    outputs = [
        helper.make_tensor_value_info("sample", TensorProto.FLOAT, [1, 3, frames, "h", "w"]),
        helper.make_tensor_value_info("next_cache_00", TensorProto.FLOAT, shape),
    ]
    added = ["latents", "cache_00"] if following else ["latents", "zero"]
    nodes = [
        helper.make_node("Add", added, ["next_cache_00"]),
        helper.make_node("Slice", ["next_cache_00", "from", "to", "channels"], ["colours"]),
        helper.make_node("Concat", ["colours"] * frames, ["sample"], axis=2),
    ]
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [1], [start])
    cut = {"from": 0, "to": 3, "channels": 1}
    constants = [helper.make_tensor(name, TensorProto.INT64, [1], [value]) for name, value in cut.items()]
    inputs = [latents, cache] if following else [latents]
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, [*constants, *([] if following else [zero])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))


@pytest.fixture
def decoder(tmp_path: Path) -> Any:
    _write_graph(tmp_path / "first.onnx", 1, following=False)
    _write_graph(tmp_path / "next.onnx", 4, following=True)
    parameters = {"max_sessions": {"string_value": "2"}, "session_idle_s": {"string_value": "60"}}
    config = {"name": "wan_t2v_vae_decoder", "parameters": parameters}
    program = VideoDecoder(Settings("wan_t2v_vae_decoder", tmp_path, config))
    yield program
    program.close()


def ask(decoder: VideoDecoder, latents: NDArray[Any] | None, **call: Any) -> list[NDArray[np.uint8]]:
    tensors = {} if latents is None else {"latents": latents}
    return [answer["frames"] for answer in decoder.run(Call(tensors, NOBODY, **call))]


def test_whole_video_gives_one_frame_then_four_per_latent(decoder: VideoDecoder) -> None:
    frames = ask(decoder, LATENTS)
    assert [part.shape for part in frames] == [(1, 2, 3, 3), *[(4, 2, 3, 3)] * 3]
    total = LATENTS.sum(axis=2)[0, :3].transpose(1, 2, 0)
    assert np.array_equal(frames[-1][0], np.round(np.clip(total / 2 + 0.5, 0, 1) * 255).astype(np.uint8))


@pytest.mark.parametrize("cuts", [[1, 2, 3], [1], [3], [2, 3]])
@pytest.mark.parametrize("key", [7, "a video"])
def test_session_gives_the_same_frames_however_it_is_cut(
    decoder: VideoDecoder, cuts: list[int], key: int | str
) -> None:
    whole = ask(decoder, LATENTS)
    pieces = np.split(LATENTS, cuts, axis=2)
    parts = []
    for index, piece in enumerate(pieces):
        parts += ask(decoder, piece, turn=Turn(key, start=index == 0, end=index == len(pieces) - 1))
        ask(decoder, LATENTS)  # somebody else's video in between
    assert all(np.array_equal(a, b) for a, b in zip(whole, parts, strict=True))
    with pytest.raises(InvalidRequest, match="is not open"):
        ask(decoder, LATENTS, turn=Turn(key))


def test_session_begins_anew_when_it_is_started_twice(decoder: VideoDecoder) -> None:
    first = ask(decoder, LATENTS[:, :, :1], turn=Turn(1, start=True))
    again = ask(decoder, LATENTS[:, :, :1], turn=Turn(1, start=True))
    assert np.array_equal(first[0], again[0])


def test_end_without_latents_frees_a_session_and_forgives_an_unknown_one(decoder: VideoDecoder) -> None:
    for key in (1, 2):
        ask(decoder, LATENTS, turn=Turn(key, start=True))
    with pytest.raises(Overloaded, match="all 2 sessions are in use"):
        ask(decoder, LATENTS, turn=Turn(3, start=True))
    assert ask(decoder, None, turn=Turn(1, end=True)) == []
    assert ask(decoder, None, turn=Turn(99, end=True)) == []
    ask(decoder, LATENTS, turn=Turn(3, start=True))


def test_session_is_freed_when_it_is_cancelled_between_latents(decoder: VideoDecoder) -> None:
    answers = iter([False, False, True])
    with pytest.raises(Cancelled, match="before latent 2"):
        ask(decoder, LATENTS, turn=Turn(1, start=True), is_cancelled=lambda: next(answers))
    with pytest.raises(InvalidRequest, match="is not open"):
        ask(decoder, LATENTS, turn=Turn(1))


@pytest.mark.parametrize(
    ("latents", "call", "text"),
    [
        (None, {}, "latents must be given"),
        (None, {"turn": Turn(1, start=True)}, "latents must be given"),
        (LATENTS[:, :, :0], {}, "latents must have 1 or more latent_frames"),
        (np.full_like(LATENTS, np.nan), {}, "latents must be finite"),
        (LATENTS, {"turn": Turn(start=True)}, "session id must be given"),
        (LATENTS, {"turn": Turn(5)}, "session 5 is not open"),
    ],
)
def test_request_is_refused_when_it_breaks_a_rule(
    decoder: VideoDecoder, latents: NDArray[Any] | None, call: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        ask(decoder, latents, **call)
    assert len(ask(decoder, LATENTS)) == 4


def test_session_is_refused_when_its_size_changes(decoder: VideoDecoder) -> None:
    ask(decoder, LATENTS, turn=Turn(1, start=True))
    with pytest.raises(
        InvalidRequest, match=r"latents must have the height and width \[2, 3\] .* got \[1, 3\]"
    ):
        ask(decoder, LATENTS[:, :, :, :1], turn=Turn(1))


def test_frames_that_are_not_finite_are_an_error(decoder: VideoDecoder, tmp_path: Path) -> None:
    decoder.close()
    _write_graph(tmp_path / "first.onnx", 1, following=False, start=float("inf"))
    parameters = {"max_sessions": {"string_value": "2"}, "session_idle_s": {"string_value": "60"}}
    broken = VideoDecoder(Settings("d", tmp_path, {"name": "d", "parameters": parameters}))
    with pytest.raises(Unrecoverable, match="frames must be finite, got NaN or infinity in latent 0"):
        ask(broken, LATENTS)
    broken.close()


@pytest.mark.parametrize("value", [3.4e38, -3.4e38, 1.1e6])
def test_latents_that_no_network_gives_are_refused(decoder: VideoDecoder, value: float) -> None:
    with pytest.raises(InvalidRequest, match="latents must be within -1000000 to 1000000, got"):
        ask(decoder, np.full_like(LATENTS, value))


def test_last_response_of_a_request_is_marked_as_the_last(decoder: VideoDecoder) -> None:
    marked = [isinstance(answer, Last) for answer in decoder.run(Call({"latents": LATENTS}, NOBODY))]
    assert marked == [False, False, False, True]
    assert decoder.reports_requests is False


def test_session_stays_when_another_size_was_refused(decoder: VideoDecoder) -> None:
    ask(decoder, LATENTS[:, :, :1], turn=Turn(1, start=True))
    with pytest.raises(InvalidRequest) as failure:
        ask(decoder, LATENTS[:, :, :, :1], turn=Turn(1))
    rule = "latents must have the height and width [2, 3] of the session's first latents"
    text = f"{rule}, got [1, 3]; try a new session"
    assert str(failure.value) == f"wan_t2v_vae_decoder: {text}"
