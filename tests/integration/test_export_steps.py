"""Networks run step by step, exported for real and verified through their own steps.

The network is a block of frames that attends to itself and to a rolling window of earlier blocks, which is
how a world that is steered live is computed: every block is run several times over the same places, and only
its last run, at a timestep of 0, writes what later blocks see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.graph.onnx import export_graph
from slipway_export.spec import Axis, Component, DType, Precision, StepInput, Stepped, TensorSpec, Tolerance
from slipway_export.verification.comparison import ParityFailed, ParityRow, check_parity
from slipway_export.verification.steps import verify_stepped
from slipway_serving.protocol.errors import InvalidRequest

pytestmark = pytest.mark.long

BOUND = {Precision.FP32: Tolerance(1e-5, 1e-5, 0.999999)}
BLOCK, WINDOW, CHANNELS, ACTIONS = 3, 6, 4, 2
PLACES = "6 * height * width"


class World(nn.Module):
    """One block of frames after those of a window.

    A place takes part where its frame is within the window and not before the first: `start` says how many
    frames there were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Linear(ACTIONS, CHANNELS)
        self.see = nn.Linear(CHANNELS, CHANNELS)

    def forward(
        self, latents: Tensor, timestep: Tensor, actions: Tensor, image: Tensor, start: Tensor, cache: Tensor
    ) -> tuple[Tensor, Tensor]:
        batch, _, frames, height, width = latents.shape
        tokens = self.tokens(latents, timestep, actions, image)
        places = frames * height * width
        # Each run of a block writes the same places: those after the ones that stay.
        keys = torch.cat([cache[:, places:], tokens], dim=1)
        there = torch.arange(WINDOW) >= WINDOW - BLOCK - start
        there = there[:, None].expand(-1, height * width).reshape(1, 1, -1)
        sample = self.attend(tokens, keys, there)
        return sample.view(batch, frames, height, width, CHANNELS).movedim(-1, 1), keys

    def tokens(self, latents: Tensor, timestep: Tensor, actions: Tensor, image: Tensor) -> Tensor:
        x = latents + timestep[:, None, :, None, None] / 1000
        x = x + self.act(actions).transpose(1, 2)[..., None, None] + image[:, :, None]
        return x.flatten(2).transpose(1, 2)

    def attend(self, tokens: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        q, k = self.see(tokens)[:, None], keys[:, None]
        return tokens + functional.scaled_dot_product_attention(q, k, k, attn_mask=mask)[:, 0]

    def whole(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Run all blocks at once, each of which sees itself and what of the window lies before it."""
        latents = inputs["latents"]
        tokens = self.tokens(*(inputs[name] for name in ("latents", "timestep", "actions", "image")))
        batch, _, frames, height, width = latents.shape
        frame = torch.arange(frames).repeat_interleave(height * width)
        end = (frame // BLOCK + 1) * BLOCK
        mask = (frame[None] < end[:, None]) & (frame[None] >= end[:, None] - WINDOW)
        sample = self.attend(tokens, tokens, mask[None])
        return {"sample": sample.view(batch, frames, height, width, CHANNELS).movedim(-1, 1)}


def world(module: nn.Module) -> Component:
    block = ("batch", CHANNELS, BLOCK, "height", "width")
    return Component(
        "world",
        (
            TensorSpec("latents", DType.FLOAT32, block),
            TensorSpec("timestep", DType.FLOAT32, ("batch", BLOCK), values=(1, 1000)),
            TensorSpec("actions", DType.FLOAT32, ("batch", BLOCK, ACTIONS)),
            TensorSpec("image", DType.FLOAT32, ("batch", CHANNELS, "height", "width")),
            TensorSpec("start", DType.INT64, (1,), values=(0, 7)),
            TensorSpec("cache", DType.FLOAT32, ("batch", PLACES, CHANNELS), initial=0.0),
        ),
        (
            TensorSpec("sample", DType.FLOAT32, block),
            TensorSpec("next_cache", DType.FLOAT32, ("batch", PLACES, CHANNELS)),
        ),
        (Axis("batch", 1, 2, 2), Axis("height", 1, 2, 4), Axis("width", 1, 3, 4)),
        lambda *_: module,
        BOUND,
    )


def stepped(component: Component, module: World, **changes: Any) -> Stepped:
    words: dict[str, Any] = {
        "inputs": {
            "latents": StepInput(axis=2, each_run=True),
            "timestep": StepInput(axis=1, each_run=True, committed=0.0),
            "actions": StepInput(axis=1),
            "start": StepInput(make=lambda step: np.array([BLOCK * step])),
        },
        "outputs": {"sample": 2},
        "steps": 5,
        "runs": 3,
        "reference": module.whole,
    }
    return Stepped(component, **(words | changes))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Component, World, Path]:
    torch.manual_seed(0)
    module = World().eval().requires_grad_(False)
    component = world(module)
    path = tmp_path_factory.mktemp("world") / "model.onnx"
    export_graph(component, module, path, opset=23)
    return component, module, path


def rows_of(described: Stepped, path: Path) -> list[ParityRow]:
    return verify_stepped(described, {described.next.label: path}, Precision.FP32)


def test_steps_equal_the_whole_run_past_the_first_eviction(exported: tuple[Component, World, Path]) -> None:
    component, module, path = exported
    described = stepped(component, module)
    assert [tensor.name for tensor in described.carried] == ["cache"]
    rows = rows_of(described, path)
    check_parity(rows)
    sizes = "(batch=2, height=2, width=3)"
    assert [row.point for row in rows[:4]] == [
        f"step 1 of 5, run 1 of 3 {sizes}",
        f"step 1 of 5, run 2 of 3 {sizes}",
        f"step 1 of 5, run 3 of 3, which commits {sizes}",
        f"step 2 of 5, run 1 of 3 {sizes}",
    ]
    assert len(rows) == 15


def forgetful(module: World, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """A whole run whose blocks see nothing but themselves."""
    frames = inputs["latents"].shape[2]
    new = {name: (2 if name == "latents" else 1) for name in ("latents", "timestep", "actions")}
    blocks = [
        {n: x.narrow(new[n], start, BLOCK) if n in new else x for n, x in inputs.items()}
        for start in range(0, frames, BLOCK)
    ]
    return {"sample": torch.cat([module.whole(block)["sample"] for block in blocks], dim=2)}


def test_steps_fail_from_the_second_on_when_the_whole_run_has_no_window(
    exported: tuple[Component, World, Path],
) -> None:
    component, module, path = exported
    rows = rows_of(stepped(component, module, reference=partial(forgetful, module)), path)
    assert [bool(row.failures) for row in rows] == [False] * 3 + [True] * 12
    with pytest.raises(ParityFailed, match="world: sample at step 2 of 5, run 1 of 3 "):
        check_parity(rows)


def test_steps_fail_when_every_run_would_commit(tmp_path: Path) -> None:
    """A graph that rolls its window by what it holds already, as if the run before had committed."""

    class Rolling(World):
        def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
            sample, keys = super().forward(*inputs)
            return sample, keys.roll(1, dims=1)

    torch.manual_seed(0)
    module = Rolling().eval().requires_grad_(False)
    component = world(module)
    export_graph(component, module, tmp_path / "model.onnx", opset=23)
    rows = rows_of(stepped(component, module), tmp_path / "model.onnx")
    assert any(row.failures for row in rows if row.point.startswith("step 2"))


def graph_without(component: Component, name: str) -> Component:
    return replace(component, inputs=tuple(t for t in component.inputs if t.name != name))


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (
            lambda c: replace(c, inputs=(*c.inputs[:-1], replace(c.inputs[-1], initial=None))),
            {},
            "cache must have an initial value",
        ),
        (lambda c: graph_without(c, "cache"), {}, "output next_cache of world must be an input cache"),
        (
            lambda c: replace(c, outputs=(c.outputs[0], replace(c.outputs[1], shape=("batch", 6, CHANNELS)))),
            {},
            "output next_cache of world must be an input cache of the same shape",
        ),
        (lambda c: c, {"inputs": {"latent": StepInput(axis=2)}}, r"not carried, got \['latent'\]"),
        (lambda c: c, {"inputs": {"cache": StepInput(axis=1)}}, r"not carried, got \['cache'\]"),
        (lambda c: c, {"outputs": {}}, r"outputs must be those that are not carried, \['sample'\]"),
        (lambda c: c, {"runs": 0}, "steps and runs must be at least 1"),
        (lambda c: c, {"first": "without actions"}, ""),
    ],
)
def test_steps_that_do_not_fit_together_are_refused(
    change: Callable[[Component], Component], words: dict[str, Any], message: str
) -> None:
    component = change(world(World()))
    if "first" in words:
        first = replace(component, graph="first", inputs=(TensorSpec("other", DType.FLOAT32, (1,)),))
        words, message = {"first": first}, r"world/first must take inputs of world, got \['other'\]"
    with pytest.raises(InvalidRequest, match=message):
        stepped(component, World(), **words)


def test_step_input_that_overlaps_must_be_cut_along_an_axis() -> None:
    with pytest.raises(InvalidRequest, match="must be cut along an axis to overlap"):
        StepInput(overlap=3)


def test_tensor_that_a_step_makes_must_have_the_described_shape(
    exported: tuple[Component, World, Path],
) -> None:
    component, module, path = exported
    wrong = {"start": StepInput(make=lambda step: np.array([step, step]))}
    with pytest.raises(
        InvalidRequest, match=r"the values made for start must have shape \[1\], or one .*, got \[2\]"
    ):
        rows_of(stepped(component, module, inputs=wrong), path)


def test_whole_run_of_another_length_is_refused(exported: tuple[Component, World, Path]) -> None:
    component, module, path = exported

    def short(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"sample": module.whole(inputs)["sample"][:, :, 1:]}

    with pytest.raises(InvalidRequest, match="must return size 15 of sample along dimension 2 for 5 steps"):
        rows_of(stepped(component, module, reference=short), path)


@pytest.mark.parametrize(("family", "first"), [("wan_t2v", True), ("airimu", False)])
def test_families_say_their_steps_in_the_same_words(family: str, first: bool) -> None:
    chosen = family_named(family)
    with open_checkpoint(chosen, "tiny") as checkpoint:
        (described,) = chosen.plan(checkpoint, chosen.presets["tiny"].axes).stepped
    assert (described.first is not None) == first
    assert described.carried
    carried = {tensor.name for tensor in described.carried}
    assert {tensor.name for tensor in described.next.inputs} == carried | described.inputs.keys()
