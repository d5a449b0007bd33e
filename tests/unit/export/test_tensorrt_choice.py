"""Choice of the library, the targets and the options of an engine, and what is refused before any work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from slipway_export.engines.tensorrt import choice as choices
from slipway_export.engines.tensorrt.choice import choose_engines
from slipway_export.engines.tensorrt.plan import EngineOptions, Profiles
from slipway_export.engines.tensorrt.requested import EngineRequest, parse_request
from slipway_export.options import ExportOptions
from slipway_export.spec import Axis, Component, DType, Engine, Precision, TensorSpec, Tolerance
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.tensorrt.library import Library

BOUND = Tolerance(1e-3, 1e-4, 0.9999)
NET = Component(
    "net",
    (TensorSpec("x", DType.FLOAT32, ("batch", 4)),),
    (TensorSpec("y", DType.FLOAT32, ("batch", 4)),),
    (Axis("batch", 1, 2, 8),),
    lambda *_: nn.Linear(4, 4, device="meta"),
    {Precision.FP32: BOUND, Precision.BF16: BOUND},
)


def machine(
    monkeypatch: pytest.MonkeyPatch, *libraries: Library, gpus: list[tuple[int, int]] | None = None
) -> None:
    """Let the machine have these libraries and GPUs."""
    installed = property(lambda self: "1.2.3.4" if self in libraries else None)
    monkeypatch.setattr(Library, "installed_version", installed)
    monkeypatch.setattr(choices, "compute_capabilities", lambda: gpus or [])


def options(engine: Engine = Engine.TENSORRT_RTX, **changes: Any) -> ExportOptions:
    return ExportOptions("tiny", **{"repository": Path("models"), "engine": engine, **changes})


def test_given_targets_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Library.RTX)
    request = EngineRequest(("sm89", "sm120"), Profiles.LATENCY)
    chosen = choose_engines([NET], options(tensorrt=request))["net"]
    assert (chosen.library, chosen.targets, chosen.placed) == (Library.RTX, ("sm89", "sm120"), True)
    assert chosen.profiles is Profiles.LATENCY


def test_gpu_at_hand_is_the_target_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Library.RTX, Library.TENSORRT, gpus=[(8, 9)])
    assert choose_engines([NET], options())["net"].targets == ("sm89",)
    assert choose_engines([NET], options(Engine.TENSORRT))["net"].targets == ("sm89",)


def test_rtx_stands_in_for_tensorrt_when_a_graph_is_only_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Library.RTX)
    chosen = choose_engines([NET], options(Engine.TENSORRT, check_only=True))["net"]
    assert (chosen.library, chosen.instead_of) == (Library.RTX, Library.TENSORRT)
    assert chosen.text == "TensorRT-RTX 1.2.3.4 for sm89, in place of TensorRT"
    assert not chosen.placed


def test_check_keeps_the_requested_targets_that_the_stand_in_has(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Library.RTX)
    asked = options(Engine.TENSORRT, check_only=True, tensorrt=EngineRequest(("sm90", "sm120")))
    assert choose_engines([NET], asked)["net"].targets == ("sm120",)


def test_check_on_a_gpu_that_the_library_lacks_uses_its_own_target(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Library.RTX, gpus=[(9, 0)])
    assert choose_engines([NET], options(check_only=True))["net"].targets == ("sm89",)


def test_graph_is_not_parsed_when_no_library_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert choose_engines([NET], options(check_only=True)) == {}
    assert choose_engines([NET], options(repository=None, output=Path("g.onnx"))) == {}


@pytest.mark.parametrize(
    ("libraries", "gpus", "changes", "said"),
    [
        ((), None, {}, "engine tensorrt-rtx must have TensorRT-RTX installed .* pip install"),
        ((Library.RTX,), None, {"engine": Engine.TENSORRT},
         "engine tensorrt must have TensorRT installed .* export-gpu.*--engine tensorrt-rtx"),
        ((Library.RTX,), None, {}, "target must be one of sm75, .*, got none; try --target sm89"),
        ((Library.RTX,), [(9, 0)], {}, "target of engine tensorrt-rtx must be one of .*, got sm90; for"),
        ((Library.TENSORRT,), None, {"engine": Engine.TENSORRT}, "got a machine without an NVIDIA GPU"),
        ((Library.TENSORRT,), [(9, 0)],
         {"engine": Engine.TENSORRT, "tensorrt": EngineRequest(("sm89",))},
         "target of engine tensorrt must be that of this machine's first GPU, sm90, got sm89"),
        ((Library.RTX,), None,
         {"tensorrt": EngineRequest(("sm89",), options=EngineOptions(timing_cache=Path("t")))},
         "timing-cache must be left out with engine tensorrt-rtx"),
        ((Library.RTX,), None,
         {"tensorrt": EngineRequest(("sm89",), options=EngineOptions(strip_weights=True))},
         "refit must be given on a machine with an NVIDIA driver"),
        ((Library.TENSORRT,), [(9, 0)],
         {"engine": Engine.TENSORRT, "tensorrt": EngineRequest(options=EngineOptions(strip_weights=True))},
         "refit must be left out with engine tensorrt"),
        ((Library.RTX,), None,
         {"tensorrt": EngineRequest(("sm75", "sm89")), "precision": Precision.BF16},
         "target must be sm80 or newer for bf16 of net, got sm75"),
        ((Library.RTX,), None,
         {"engine": Engine.ONNXRUNTIME, "tensorrt": EngineRequest(given={"target": "sm89"})},
         "target must be given with --engine tensorrt or tensorrt-rtx, got sm89"),
    ],
)  # fmt: skip
def test_engine_is_refused_when_it_cannot_be_built_here(
    monkeypatch: pytest.MonkeyPatch,
    libraries: tuple[Library, ...],
    gpus: list[tuple[int, int]] | None,
    changes: dict[str, Any],
    said: str,
) -> None:
    machine(monkeypatch, *libraries, gpus=gpus)
    with pytest.raises(InvalidRequest, match=said):
        choose_engines([NET], options(**changes))


@pytest.mark.parametrize(("precision", "least"), [(Precision.INT8, 80), (Precision.FP8, 89)])
def test_target_is_refused_when_it_lacks_a_precision_of_a_quantized_graph(
    monkeypatch: pytest.MonkeyPatch, precision: Precision, least: int
) -> None:
    machine(monkeypatch, Library.RTX)
    bounds = {**NET.tolerance, precision: BOUND}
    net = replace(NET, tolerance=bounds).for_engine(Engine.TENSORRT_RTX)  # bfloat16 around the products
    asked = options(tensorrt=EngineRequest(("sm75", "sm120")), precision=precision)
    with pytest.raises(
        InvalidRequest, match=f"target must be sm{least} or newer for {precision.value} of net"
    ):
        choose_engines([net], asked)


def test_all_problems_are_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Library.RTX)
    other = replace(NET, name="other")
    request = EngineRequest(("sm75",))
    with pytest.raises(InvalidRequest, match=r"bf16 of net, got sm75 \| .*bf16 of other, got sm75"):
        choose_engines([NET, other], options(tensorrt=request, precision=Precision.BF16))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"target": "8.9"}, "target must be compute capabilities such as sm89 or sm80,sm120, got '8.9'"),
        ({"workspace_gib": 0.0}, "workspace-gib must be above 0, got 0"),
        ({"builder_level": 6}, "builder-level must be 0 to 5, got 6"),
    ],
)
def test_value_of_an_option_is_refused_by_its_rule(values: dict[str, Any], said: str) -> None:
    usual: dict[str, Any] = dict.fromkeys(
        ("target", "profiles", "workspace_gib", "builder_level", "timing_cache")
    )
    with pytest.raises(InvalidRequest, match=said):
        parse_request(**usual | values, refit=False, weight_streaming=False)


def test_given_options_are_kept_with_their_flags() -> None:
    request = parse_request("sm89, sm120", None, 1.5, 3, None, refit=False, weight_streaming=True)
    assert request.targets == ("sm89", "sm120")
    assert request.options == EngineOptions(3 * 2**29, 3, weight_streaming=True)
    assert set(request.given) == {"target", "workspace-gib", "builder-level", "weight-streaming"}
