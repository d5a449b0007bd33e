"""The cached denoiser's program on graphs of a few nodes: when it reuses, what it refuses, what it frees."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from slipway_serving.families.wan_t2v.denoiser import WanCachedDenoiser
from slipway_serving.protocol.errors import Cancelled, InvalidRequest, Overloaded
from slipway_serving.protocol.turns import Turn
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.program import Call, Settings

NOBODY = InProcessModels(Path("nowhere"))
LATENTS = np.random.default_rng(0).uniform(1, 2, (1, 16, 2, 2, 3)).astype(np.float32)
ANY = ["b", "c", "f", "h", "w"]
Shapes = Mapping[str, list[Any]]


def _write(path: Path, nodes: list[Any], inputs: Shapes, outputs: Shapes) -> None:
    def infos(shapes: Shapes) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()
        ]

    constants = [
        helper.make_tensor("ten", TensorProto.FLOAT, [1], [10.0]),
        helper.make_tensor("all", TensorProto.INT64, [4], [1, 2, 3, 4]),
    ]
    used = {name for node in nodes for name in node.input}
    constants = [constant for constant in constants if constant.name in used]
    graph = helper.make_graph(nodes, path.stem, infos(inputs), infos(outputs), constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))


@pytest.fixture
def denoiser(tmp_path: Path) -> Iterator[WanCachedDenoiser]:
    """First block: adds the latents to themselves; the others: add ten times those; no projection."""
    node = helper.make_node
    temb, text = {"temb": ["b"]}, ["b", "n", "d"]
    _write(
        tmp_path / "head.onnx",
        [
            node("Add", ["hidden_states", "hidden_states"], ["hidden"]),
            node("Identity", ["hidden_states"], ["residual"]),
            node("Identity", ["timestep"], ["temb"]),
            node("Identity", ["timestep"], ["timestep_proj"]),
            node("Identity", ["encoder_hidden_states"], ["context"]),
        ],
        {"hidden_states": ANY, "timestep": ["b"], "encoder_hidden_states": text},
        {"hidden": ANY, "residual": ANY, **temb, "timestep_proj": ["b"], "context": text},
    )
    difference = [
        node("Sub", ["residual", "cached_residual"], ["d"]),
        node("Abs", ["d"], ["da"]),
        node("ReduceMean", ["da", "all"], ["dm"], keepdims=0),
        node("Abs", ["cached_residual"], ["ca"]),
        node("ReduceMean", ["ca", "all"], ["cm"], keepdims=0),
        node("Div", ["dm", "cm"], ["change"]),
    ]
    _write(tmp_path / "change.onnx", difference, {"residual": ANY, "cached_residual": ANY}, {"change": ["b"]})
    _write(
        tmp_path / "tail.onnx",
        [node("Mul", ["hidden", "ten"], ["tail_residual"])],
        {"hidden": ANY, "timestep_proj": ["b"], "context": text},
        {"tail_residual": ANY},
    )
    _write(
        tmp_path / "finish.onnx",
        [node("Add", ["hidden", "tail_residual"], ["sample"])],
        {"hidden": ANY, "tail_residual": ANY, **temb},
        {"sample": ANY},
    )
    parameters = {"max_sessions": {"string_value": "2"}, "session_idle_s": {"string_value": "60"}}
    config = {"name": "wan_t2v_denoiser_high", "parameters": parameters}
    program = WanCachedDenoiser(Settings("wan_t2v_denoiser_high", tmp_path, config))
    yield program
    program.close()


def tensors_of(latents: NDArray[Any], threshold: float | None = None) -> dict[str, NDArray[Any]]:
    found = {
        "hidden_states": latents,
        "timestep": np.ones((len(latents), 1), np.float32),
        "encoder_hidden_states": np.ones((len(latents), 4, 2), np.float32),
    }
    if threshold is not None:
        found["cache_threshold"] = np.array([threshold], np.float32)
    return found


def ask(denoiser: WanCachedDenoiser, tensors: dict[str, NDArray[Any]], **call: Any) -> tuple[Any, bool]:
    (answer,) = denoiser.run(Call(tensors, NOBODY, **call))
    return (answer["sample"], bool(answer["cached"][0])) if answer else (None, False)


def test_batch_is_computed_in_full_when_there_is_no_threshold(denoiser: WanCachedDenoiser) -> None:
    both = np.concatenate([LATENTS, 2 * LATENTS])
    for _ in range(2):
        sample, cached = ask(denoiser, tensors_of(both))
        assert not cached
        np.testing.assert_allclose(sample, both * 22, rtol=1e-6)


def test_tail_is_reused_when_the_first_block_changed_little(denoiser: WanCachedDenoiser) -> None:
    def step(factor: float, **flags: bool) -> tuple[Any, bool]:
        return ask(denoiser, tensors_of(LATENTS * factor, 0.1), turn=Turn(5, **flags))

    assert step(1.0, start=True)[1] is False
    sample, cached = step(1.08)
    assert cached
    np.testing.assert_allclose(sample, LATENTS * (2 * 1.08 + 20), rtol=1e-6)
    # Compared with the last step in full, not with the last step.
    sample, cached = step(1.16)
    assert not cached
    np.testing.assert_allclose(sample, LATENTS * 1.16 * 22, rtol=1e-6)
    assert step(1.2)[1] is True


@pytest.mark.parametrize(("threshold", "cached"), [(0.0, [False, False]), (1e9, [True, True])])
def test_threshold_decides(denoiser: WanCachedDenoiser, threshold: float, cached: list[bool]) -> None:
    ask(denoiser, tensors_of(LATENTS, threshold), turn=Turn(5, start=True))
    steps = [ask(denoiser, tensors_of(LATENTS * k, threshold), turn=Turn(5))[1] for k in (1.01, 1.02)]
    assert steps == cached


def test_sessions_do_not_disturb_each_other_when_they_interleave(denoiser: WanCachedDenoiser) -> None:
    for key, factor in ((1, 1.0), (2, 5.0)):
        ask(denoiser, tensors_of(LATENTS * factor, 0.1), turn=Turn(key, start=True))
    for key, factor in ((1, 1.0), (2, 5.0)):
        sample, cached = ask(denoiser, tensors_of(LATENTS * factor, 0.1), turn=Turn(key))
        assert cached
        np.testing.assert_allclose(sample, LATENTS * factor * 22, rtol=1e-6)


def test_start_forgets_when_the_session_was_under_way(denoiser: WanCachedDenoiser) -> None:
    for _ in range(3):
        assert ask(denoiser, tensors_of(LATENTS, 1.0), turn=Turn(5, start=True))[1] is False


@pytest.mark.parametrize("with_tensors", [False, True])
def test_cache_is_freed_when_the_session_ends(denoiser: WanCachedDenoiser, with_tensors: bool) -> None:
    tensors = tensors_of(LATENTS, 1.0)
    ask(denoiser, tensors, turn=Turn(5, start=True))
    assert len(denoiser._sessions) == 1
    assert ask(denoiser, tensors if with_tensors else {}, turn=Turn(5, end=True))[1] is with_tensors
    assert len(denoiser._sessions) == 0
    with pytest.raises(InvalidRequest, match="session 5 is not open"):
        ask(denoiser, tensors, turn=Turn(5))


def test_cache_is_freed_when_the_caller_cancels(denoiser: WanCachedDenoiser) -> None:
    ask(denoiser, tensors_of(LATENTS, 0.1), turn=Turn(5, start=True))
    with pytest.raises(Cancelled, match="after the first block"):
        ask(denoiser, tensors_of(LATENTS * 2, 0.1), turn=Turn(5), is_cancelled=lambda: True)
    assert len(denoiser._sessions) == 0


def test_session_is_refused_when_too_many_are_under_way(denoiser: WanCachedDenoiser) -> None:
    for key in (1, 2):
        ask(denoiser, tensors_of(LATENTS, 0.1), turn=Turn(key, start=True))
    with pytest.raises(Overloaded, match="all 2 sessions are in use"):
        ask(denoiser, tensors_of(LATENTS, 0.1), turn=Turn(3, start=True))


@pytest.mark.parametrize(
    ("tensors", "call", "text"),
    [
        ({}, {}, r"hidden_states must be given.* \| timestep .* \| encoder_hidden_states"),
        (tensors_of(LATENTS, 0.1), {}, "cache_threshold must be given in a session, and only there"),
        (
            tensors_of(LATENTS),
            {"turn": Turn(5)},
            "cache_threshold must be given in a session, and only there",
        ),
        (tensors_of(LATENTS, -1.0), {"turn": Turn(5, start=True)}, "at least 0, got -1.0; try 0.05"),
        (tensors_of(LATENTS, np.nan), {"turn": Turn(5, start=True)}, "cache_threshold must be finite"),
        (tensors_of(LATENTS), {"turn": Turn(start=True)}, "session id must be given to begin or end"),
        (
            tensors_of(np.repeat(LATENTS, 2, axis=0), 0.1),
            {"turn": Turn(5, start=True)},
            "must be a batch of 1 with cache_threshold, got 2; try a session for each guidance branch",
        ),
        (
            tensors_of(LATENTS) | {"timestep": np.ones((2, 1), np.float32)},
            {},
            r"hidden_states and timestep must have the same rows, .*\[2, 1\]",
        ),
        (tensors_of(LATENTS[:, :, :0]), {}, "hidden_states must have 1 or more latent_frames"),
    ],
)
def test_request_is_refused_when_it_breaks_a_rule(
    denoiser: WanCachedDenoiser, tensors: dict[str, Any], call: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        ask(denoiser, tensors, **call)
    assert ask(denoiser, tensors_of(LATENTS))[1] is False


def test_session_is_refused_when_its_size_changes(denoiser: WanCachedDenoiser) -> None:
    ask(denoiser, tensors_of(LATENTS, 0.1), turn=Turn(1, start=True))
    with pytest.raises(
        InvalidRequest, match=r"must keep the shape \[1, 16, 2, 2, 3\] of the session's first step, got"
    ):
        ask(denoiser, tensors_of(LATENTS[:, :, :1], 0.1), turn=Turn(1))
