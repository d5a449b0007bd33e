"""The program that PyTorch serves components with, on a network of one product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.backends.onnxruntime.signature import GraphTensor, Signature
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.program import Call, Settings
from slipway_serving.runtime.torch_engine.network import Network
from slipway_serving.runtime.torch_engine.options import Offload, TorchOptions, Weights
from slipway_serving.runtime.torch_engine.prepare import Forward, prepare
from slipway_serving.runtime.torch_engine.program import TorchModel

WIDTH = 64


class Scaled(nn.Module):
    """y = scale * W x, and the smallest of each row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.product = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        y = self.product(x) * scale[:, None].to(x.dtype)
        return y, y.amin(dim=1)


def load(folder: Path, precision: str) -> Network:
    assert precision == "fp32"

    def tensor(name: str, *shape: int | str) -> GraphTensor:
        return GraphTensor(name, "tensor(float)", ("batch", *shape))

    inputs = {"x": tensor("x", WIDTH), "scale": tensor("scale")}
    outputs = {"y": tensor("y", WIDTH), "least": tensor("least")}
    return Network(Scaled().eval(), Signature(inputs, {}, outputs), frozenset({"product"}))


def config(**parameters: str) -> dict[str, Any]:
    scalar = {"dims": ["1"], "reshape": {}, "data_type": "TYPE_FP32"}
    row = {"dims": [str(WIDTH)], "data_type": "TYPE_FP32"}
    values = {"network": f"{__name__}:load", **parameters}
    warm = {
        "x": {"data_type": "TYPE_FP32", "dims": [str(WIDTH)]},
        "scale": {"data_type": "TYPE_FP32", "dims": ["1"]},
    }
    return {
        "name": "scaled",
        "max_batch_size": 8,
        "input": [{"name": "x", **row}, {"name": "scale", **scalar}],
        "output": [{"name": "y", **row}, {"name": "least", **scalar}],
        "model_warmup": [{"name": "opt", "batch_size": 2, "inputs": warm}],
        "parameters": {name: {"string_value": value} for name, value in values.items()},
    }


def settings(kind: str = "CPU", **parameters: str) -> Settings:
    return Settings("scaled", Path("models/scaled/1"), config(**parameters), kind)


def inputs(batch: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(batch)
    x = random.standard_normal((batch, WIDTH)).astype(np.float32)
    return {"x": x, "scale": np.arange(1, batch + 1, dtype=np.float32)}


def expected(given: dict[str, np.ndarray]) -> np.ndarray:
    with torch.no_grad():
        y: np.ndarray = Scaled()(*(torch.from_numpy(array) for array in given.values()))[0].numpy()
    return y


@pytest.fixture
def program() -> Iterator[TorchModel]:
    made = TorchModel(settings())
    yield made
    made.close()


def call(given: dict[str, np.ndarray]) -> Call:
    return Call(given, InProcessModels(Path("models")))


def test_answer_is_the_networks(program: TorchModel) -> None:
    given = inputs(3)
    given["x"].flags.writeable = False  # as Triton's are
    (answer,) = program.run(call(given))
    np.testing.assert_array_equal(answer["y"], expected(given))
    assert answer["least"].shape == (3,)


def test_requests_of_a_batch_are_answered_together_and_none_fails_another(program: TorchModel) -> None:
    bad = {**inputs(2), "scale": np.ones(3, np.float32)}
    first, wrong, last = program.run_batch([call(inputs(1)), call(bad), call(inputs(2))])
    assert isinstance(wrong, InvalidRequest)
    assert "scale must have 2 for batch as x has, got 3" in str(wrong)
    assert not isinstance(first, Exception)
    assert not isinstance(last, Exception)
    np.testing.assert_allclose(first["y"], expected(inputs(1)), atol=1e-5)
    np.testing.assert_allclose(last["y"], expected(inputs(2)), atol=1e-5)


def ran(options: TorchOptions) -> tuple[Forward, Network]:
    network = load(Path(), "fp32")
    return prepare(network, options, torch.device("cpu"), "scaled"), network


@pytest.mark.parametrize(("weights", "error"), [(Weights.INT8, 2e-2), (Weights.INT4, 0.2)])
def test_products_are_quantized_when_weights_are_of_integers(weights: Weights, error: float) -> None:
    pytest.importorskip("torchao")
    given = inputs(4)
    forward, network = ran(TorchOptions(weights=weights))
    y = forward(*(torch.from_numpy(array) for array in given.values()))[0].numpy()
    apart = np.linalg.norm(y - expected(given)) / np.linalg.norm(y)
    assert 1e-4 < apart < error
    assert type(network.module.product.weight) is not nn.Parameter


def test_weights_are_refused_when_there_is_nothing_to_quantize() -> None:
    pytest.importorskip("torchao")
    network = load(Path(), "fp32")
    kept = Network(network.module, network.signature, frozenset())
    with pytest.raises(InvalidRequest, match="weights int8 must find linear layers to quantize, .* got none"):
        prepare(kept, TorchOptions(weights=Weights.INT8), torch.device("cpu"), "scaled")


@pytest.mark.parametrize("offload", [Offload.MODEL, Offload.LAYERS])
def test_answer_is_the_same_when_the_network_is_fetched_for_it(offload: Offload) -> None:
    given = inputs(2)
    forward, _ = ran(TorchOptions(offload=offload))
    for _ in range(2):
        y = forward(*(torch.from_numpy(array) for array in given.values()))[0].numpy()
        np.testing.assert_array_equal(y, expected(given))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        TorchOptions(),
        TorchOptions(cuda_graphs=True),
        TorchOptions(offload=Offload.MODEL),
        TorchOptions(offload=Offload.LAYERS),
        TorchOptions(compile="reduce-overhead"),
    ],
    ids=lambda options: options.summary,
)
def test_answer_is_the_same_when_a_gpu_gives_it(options: TorchOptions) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    forward = prepare(load(Path(), "fp32"), options, torch.device("cuda", 0), "scaled")
    for batch in (2, 3, 2, 1):
        given = inputs(batch)
        y = forward(*(torch.from_numpy(array) for array in given.values()))[0].numpy()
        np.testing.assert_allclose(y, expected(given), atol=1e-4)


def test_compiled_network_is_warm_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    # A product alone needs no C++ compiler, whose first run takes 15 s.
    monkeypatch.setattr(Scaled, "forward", lambda self, x, scale: (self.product(x), scale))
    counters.clear()
    program = TorchModel(settings(compile="default"))
    warm = counters["stats"]["unique_graphs"]
    assert warm >= 1
    with torch.no_grad():
        for batch in (1, 2, 3, 5, 8):
            given = inputs(batch)
            (answer,) = program.run(call(given))
            wanted = Scaled().product(torch.from_numpy(given["x"])).numpy()
            np.testing.assert_allclose(answer["y"], wanted, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == warm
    program.close()


def broken(folder: Path, precision: str) -> Network:
    network = load(folder, precision)
    network.module.forward = lambda *_: torch.zeros(2, 3) @ torch.zeros(2, 3)
    return network


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: settings(network="nope:load"), "parameter network of config.pbtxt must be an importable"),
        (
            lambda: settings(weights="fp8", precision="bf16"),
            "weights must be left out where scaled runs on a CPU",
        ),
        (lambda: settings("GPU"), "instance_group kind must be KIND_CPU where torch .* sees no GPU"),
        (
            lambda: settings(attention="sdpa"),
            r"scaled: attention must be left out \(the network has no choice of attention\), got sdpa",
        ),
        (
            lambda: settings(network=f"{__name__}:broken", compile="default"),
            "the network must run at its warm-up sizes before it is ready .fp32, compiled .default.., got",
        ),
    ],
)
def test_model_does_not_load_when_it_cannot_be_served_so(made: Callable[[], Settings], said: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("PyTorch sees a GPU")
    with pytest.raises(InvalidRequest, match=said):
        TorchModel(made())


def test_model_does_not_load_when_its_configuration_has_other_tensors() -> None:
    changed = config()
    changed["output"][0]["dims"] = ["3"]
    with pytest.raises(InvalidRequest, match="output y must have dims .*64.* got .3."):
        TorchModel(Settings("scaled", Path("models/scaled/1"), changed))
