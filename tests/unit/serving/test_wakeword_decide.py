"""The deciding program on graphs of a few nodes: one call for each word, and errors that stay their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from transformers import ASTFeatureExtractor

from slipway_serving.families.wakeword.decide import WakewordDecide
from slipway_serving.families.wakeword.heads import Heads
from slipway_serving.protocol.errors import InvalidRequest, NotReady, SlipwayError, Unrecoverable
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.program import Call, Settings, Tensors

LOUD = 0.1


def write_head(repository: Path, word: str, bias: float, threshold: float) -> None:
    """Write a head whose probability is the embedding's first value plus a bias."""
    folder = repository / f"wakeword_head_{word}" / "1"
    folder.mkdir(parents=True)
    nodes = [
        helper.make_node("Gather", ["embedding", "zero"], ["first"], axis=1),
        helper.make_node("Add", ["first", "bias"], ["probability"]),
        helper.make_node("Mul", ["first", "none"], ["nothing"]),
        helper.make_node("Add", ["nothing", "bound"], ["threshold"]),
    ]
    graph = helper.make_graph(
        nodes,
        word,
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", 4])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"])
            for name in ("probability", "threshold")
        ],
        [
            helper.make_tensor("zero", TensorProto.INT64, [], [0]),
            helper.make_tensor("bias", TensorProto.FLOAT, [1], [bias]),
            helper.make_tensor("none", TensorProto.FLOAT, [1], [0.0]),
            helper.make_tensor("bound", TensorProto.FLOAT, [1], [threshold]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(folder / "model.onnx"))
    (folder.parent / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 16\n'
        'input [ { name: "embedding" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "probability" data_type: TYPE_FP32 dims: [ 1 ] reshape: { shape: [ ] } },\n'
        '  { name: "threshold" data_type: TYPE_FP32 dims: [ 1 ] reshape: { shape: [ ] } } ]\n'
    )


class Counting(InProcessModels):
    """Counts the calls of each model."""

    def __init__(self, repository: Path) -> None:
        super().__init__(repository, threads=1)
        self.calls: Counter[str] = Counter()

    def call(self, model: str, tensors: Tensors, outputs: list[str]) -> dict[str, Any]:
        self.calls[model] += 1
        return super().call(model, tensors, outputs)


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Counting]:
    write_head(tmp_path, "jarvis", 0.0, 0.5)
    write_head(tmp_path, "computer", 0.25, 0.65)
    (tmp_path / "wakeword_head_jarvis_fused").mkdir()
    (tmp_path / "wakeword_backbone").mkdir()
    made = Counting(tmp_path)
    yield made
    made.close()


def program(repository: Path) -> WakewordDecide:
    folder = repository / "wakeword_decide" / "1"
    folder.mkdir(parents=True)
    ASTFeatureExtractor(max_length=128).save_pretrained(folder)
    return WakewordDecide(Settings("wakeword_decide", folder, {}))


@pytest.fixture
def decide(tmp_path: Path, models: Counting) -> WakewordDecide:
    return program(tmp_path)


def call(models: Counting, values: list[float], *words: str | bytes, rms: float = LOUD) -> Call:
    embedding = np.zeros((len(values), 4), np.float32)
    embedding[:, 0] = values
    tensors: dict[str, Any] = {
        "audio": np.full((len(values), 1600), rms, np.float32),
        "sample_rate": np.full((len(values), 1), 16_000),
        "embedding": embedding,
        "rms": np.full((len(values), 1), rms, np.float32),
    }
    if words:
        names = [word if isinstance(word, bytes) else word.encode() for word in words]
        tensors["words"] = np.array([names] * len(values), np.object_)
    return Call(tensors, models)


def answer(given: Tensors | SlipwayError) -> Tensors:
    assert not isinstance(given, SlipwayError), given
    return given


def test_rows_of_all_requests_go_to_each_head_in_one_call(decide: WakewordDecide, models: Counting) -> None:
    calls = [
        call(models, [0.4], "jarvis", "computer"),
        call(models, [0.5, 0.1], "computer"),
        call(models, [0.5], "jarvis"),
    ]
    first, second, third = (answer(given) for given in decide.run_batch(calls))
    assert models.calls == {"wakeword_head_jarvis": 1, "wakeword_head_computer": 1}
    np.testing.assert_allclose(first["probability"], [[0.4, 0.65]])
    np.testing.assert_allclose(first["threshold"], [[0.5, 0.65]])
    assert first["word"].tolist() == [[b"jarvis", b"computer"]]
    assert first["detected"].tolist() == [[False, True]]
    np.testing.assert_allclose(second["probability"], [[0.75], [0.35]])
    assert second["detected"].tolist() == [[True], [False]]
    assert third["detected"].tolist() == [[True]]
    assert first["probability"].dtype == np.float32


def test_every_loaded_word_is_judged_when_none_is_named(
    decide: WakewordDecide, models: Counting, tmp_path: Path
) -> None:
    assert Heads(tmp_path, "wakeword_decide").loaded_words(models) == ["computer", "jarvis"]
    (given,) = decide.run_batch([call(models, [0.4, 0.9])])
    assert answer(given)["word"].tolist() == [[b"computer", b"jarvis"]] * 2
    write_head(tmp_path, "alexa", 0.0, 0.5)
    (given,) = decide.run_batch([call(models, [0.4])])
    assert answer(given)["word"].tolist() == [[b"alexa", b"computer", b"jarvis"]]


def test_silence_has_probability_zero_whatever_the_head_says(
    decide: WakewordDecide, models: Counting
) -> None:
    (given,) = decide.run_batch([call(models, [0.9], "jarvis", rms=0.0049)])
    assert answer(given)["probability"].tolist() == [[0.0]]
    assert answer(given)["detected"].tolist() == [[False]]


def test_wrong_request_fails_alone_in_a_batch(decide: WakewordDecide, models: Counting) -> None:
    good, unknown, broken = decide.run_batch(
        [call(models, [0.6], "jarvis"), call(models, [0.6], "jarvis", "nobody"), call(models, [0.6], "../x")]
    )
    assert answer(good)["detected"].tolist() == [[True]]
    assert isinstance(unknown, InvalidRequest)
    assert "word must be a served word, got 'nobody'; try one of: computer, jarvis" in str(unknown)
    assert isinstance(broken, InvalidRequest)
    assert "words must be 1 to 64 characters a-z" in str(broken)


@pytest.mark.parametrize("word", [b"\xff\xfe", b"", b"a\0b"])
def test_word_is_refused_when_it_is_no_name(decide: WakewordDecide, models: Counting, word: bytes) -> None:
    (given,) = decide.run_batch([call(models, [0.6], word)])
    assert isinstance(given, InvalidRequest)


def test_too_many_words_are_refused(decide: WakewordDecide, models: Counting) -> None:
    (given,) = decide.run_batch([call(models, [0.6], *["jarvis"] * 257)])
    assert isinstance(given, InvalidRequest)
    assert "words must have 0 to 256 words, got shape [1, 257]; try fewer" in str(given)


def test_clip_that_breaks_a_rule_fails_alone_in_a_batch(decide: WakewordDecide, models: Counting) -> None:
    loud = call(models, [0.6], "jarvis", rms=1.5)
    long = call(models, [0.6], "jarvis")
    long = replace(long, tensors={**long.tensors, "audio": np.zeros((1, 21_000), np.float32)})
    first, second, good = decide.run_batch([loud, long, call(models, [0.6], "jarvis")])
    assert isinstance(first, InvalidRequest)
    assert "wakeword_decide: audio must be within -1 to 1, got 1.5" in str(first)
    assert isinstance(second, InvalidRequest)
    assert "wakeword_decide: audio must be at most 1.30 s long, got 1.31 s" in str(second)
    assert answer(good)["detected"].tolist() == [[True]]


def test_word_that_is_there_but_not_loaded_is_not_ready(
    decide: WakewordDecide, models: Counting, tmp_path: Path
) -> None:
    (tmp_path / "wakeword_head_loading").mkdir()
    (given,) = decide.run_batch([call(models, [0.6], "loading")])
    assert isinstance(given, NotReady)
    assert "the head of the word 'loading' is not loaded yet" in str(given)


def test_no_loaded_word_is_not_ready(tmp_path: Path) -> None:
    models = Counting(tmp_path)
    (given,) = program(tmp_path).run_batch([call(models, [0.6])])
    assert isinstance(given, NotReady)
    assert "no wake word is loaded" in str(given)


def test_head_that_gives_no_number_is_reported(decide: WakewordDecide, models: Counting) -> None:
    (given,) = decide.run_batch([call(models, [float("nan")], "jarvis")])
    assert isinstance(given, Unrecoverable)
