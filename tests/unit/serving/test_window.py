"""The rolling key/value window against attention computed anew over the whole stream, with a mask."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from slipway_serving.diffusion.window import Window
from slipway_serving.protocol.errors import Unrecoverable

HEADS, WIDTH = 2, 4
BLOCK, BLOCKS = 3, 6


def stream_of(tokens: int, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Keys, values and queries of a whole stream, [1, positions x tokens, heads, width]."""
    random = np.random.default_rng(seed)
    shape = (1, BLOCK * BLOCKS * tokens, HEADS, WIDTH)
    return {name: random.standard_normal(shape).astype(np.float32) for name in ("key", "value", "query")}


def attention(query: Any, key: Any, value: Any, mask: Any = None) -> NDArray[np.float32]:
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(WIDTH)
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attended: NDArray[np.float32] = np.einsum(
        "bhqk,bkhd->bqhd", weights / weights.sum(axis=-1, keepdims=True), value
    )
    return attended


def whole_attention(stream: dict[str, Any], size: int, tokens: int) -> NDArray[np.float32]:
    """Each block sees the positions [end - size, end), end being its own."""
    position = np.arange(BLOCK * BLOCKS * tokens) // tokens
    end = (position // BLOCK + 1) * BLOCK
    mask = (position[None] < end[:, None]) & (position[None] >= end[:, None] - size)
    return attention(stream["query"], stream["key"], stream["value"], mask)


def as_value(array: NDArray[Any]) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def as_array(tensor: Any) -> NDArray[Any]:
    return tensor.numpy() if isinstance(tensor, ort.OrtValue) else tensor


@pytest.mark.parametrize("place", [lambda array: array, as_value], ids=["arrays", "OrtValues"])
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("size", [3, 4, 6, 7, 100])
def test_blocks_attend_to_what_a_mask_over_the_whole_stream_lets_them_see(
    size: int, tokens: int, place: Any
) -> None:
    stream = stream_of(tokens)
    wanted = whole_attention(stream, size, tokens)
    window: Window[Any] = Window("world", size, axis=1, stride=tokens)
    for block in range(BLOCKS):
        cut = slice(block * BLOCK * tokens, (block + 1) * BLOCK * tokens)
        held = window.begin(BLOCK)
        assert window.valid == min(block * BLOCK, size - BLOCK)
        assert (held == {}) == (window.valid == 0)
        assert window.start == block * BLOCK
        assert window.positions == range(max(0, window.start + BLOCK - size), window.start + BLOCK)
        for step in range(3):
            # Every step but the last writes something else, which must leave no trace.
            noise = np.float32(2 - step)
            own = {name: stream[name][:, cut] + noise for name in ("key", "value")}
            seen = {
                name: np.concatenate([as_array(held[name]), own[name]], axis=1) if held else own[name]
                for name in own
            }
            got = attention(stream["query"][:, cut], **seen)
            window.write({name: place(array) for name, array in own.items()})
            np.testing.assert_array_equal(as_array(window.whole["key"]), seen["key"])
        np.testing.assert_allclose(got, wanted[:, cut], rtol=1e-5, atol=1e-6)
        window.commit()
    kept = as_array(window.held["key"])
    np.testing.assert_array_equal(kept[:, -BLOCK * tokens :], stream["key"][:, -BLOCK * tokens :])


def test_window_of_another_axis_and_blocks_of_other_lengths_keeps_the_last_positions() -> None:
    frames = np.arange(12.0).reshape(1, 1, 12).repeat(2, axis=0)
    window: Window[NDArray[Any]] = Window("world", 5, axis=2)
    begun = 0
    for length in (1, 4, 2, 5):
        window.begin(length)
        window.write({"key": frames[:, :, begun : begun + length]})
        begun += length
        assert window.whole["key"][0, 0].tolist() == list(range(max(0, begun - 5), begun))
        window.commit()
    assert window.positions == range(7, 12)


def test_what_was_written_is_dropped_when_the_block_is_begun_anew() -> None:
    window: Window[NDArray[Any]] = Window("world", 4, axis=0)
    window.begin(2)
    window.write({"key": np.ones(2)})
    window.begin(3)
    assert window.whole == {}
    window.write({"key": np.zeros(3)})
    window.commit()
    assert window.held["key"].tolist() == [0, 0, 0]


def test_dropped_positions_do_not_live_on_in_a_view() -> None:
    window: Window[NDArray[Any]] = Window("world", 4, axis=0)
    for _ in range(2):
        window.begin(3)
        window.write({"key": np.ones(3)})
        window.commit()
    held = window.begin(3)["key"]
    assert held.shape == (1,) and held.base is None


@pytest.mark.parametrize("length", [0, 5])
def test_block_is_refused_when_it_is_empty_or_larger_than_the_window(length: int) -> None:
    with pytest.raises(Unrecoverable, match=f"world: a block must be 1 to 4 long, got {length}"):
        Window("world", 4, axis=0).begin(length)


def test_write_and_commit_are_refused_when_nothing_was_begun_or_written() -> None:
    window: Window[NDArray[Any]] = Window("world", 4, axis=0)
    with pytest.raises(Unrecoverable, match="must be begun before it is written"):
        window.write({"key": np.ones(2)})
    window.begin(2)
    with pytest.raises(Unrecoverable, match="must be written before it is committed"):
        window.commit()


@pytest.mark.parametrize("tensors", [{"key": np.ones(3)}, {"value": np.ones(2)}, {}])
def test_write_is_refused_when_tensors_are_of_another_length_or_other_ones(
    tensors: dict[str, NDArray[Any]],
) -> None:
    window: Window[NDArray[Any]] = Window("world", 4, axis=0)
    window.begin(2)
    window.write({"key": np.ones(2)})
    window.commit()
    window.begin(2)
    with pytest.raises(Unrecoverable, match="must be written as key with 2 entries on axis 0, got"):
        window.write(tensors)
