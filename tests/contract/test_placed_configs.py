"""What holds for the configurations of all placed models, of every family and variant."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from placed_configs import config_of, describe_all
from staged_models import stage_all

from slipway_export.engines.torch_network import signature_of
from slipway_export.spec import BATCH, Component, Engine
from slipway_serving.protocol.errors import SlipwayError
from slipway_serving.runtime.backends.onnxruntime import session, signature
from slipway_serving.runtime.input_sizes import InputSizes, read_ranges
from slipway_serving.runtime.program import Settings

ENGINES = (Engine.ONNXRUNTIME, Engine.PORTABLE, Engine.TORCH)


def as_server_reads(config: Any) -> dict[str, Any]:
    read: dict[str, Any] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    return {"max_batch_size": 0, **read}


def refusals(components: dict[str, Component]) -> dict[str, str]:
    """Return what the server's backend says of components that it would not load, by label."""
    found = {}
    for label, component in components.items():
        for engine in ENGINES:
            config = as_server_reads(config_of(component, engine))
            try:
                signature.check(config, signature_of(component))
                session.session_options(config)
                session.run_options(config)
            except SlipwayError as error:
                found[f"{label} {engine}"] = str(error)
    return found


def test_only_models_of_one_output_use_the_response_cache() -> None:
    # The key of Triton's cache leaves out which outputs a request asks for.
    components = {label: config_of(component) for label, component in describe_all().dynamic.items()}
    configs = stage_all().configs | components
    cached = {name: len(config.output) for name, config in configs.items() if config.response_cache.enable}
    assert cached == {"wan_t2v:text_encoder": 1, "wan_t2v:first-block-cache:text_encoder": 1}


@pytest.mark.parametrize("shapes", ["dynamic", "fixed"])
def test_backend_loads_every_configuration_beside_its_graph(shapes: str) -> None:
    components = getattr(describe_all(), shapes)
    assert len(components) > 40
    assert refusals(components) == {}


def test_model_is_served_without_batching_when_its_rows_are_fixed() -> None:
    fixed = describe_all().fixed
    for label in (
        "wan_t2v:denoiser_high",
        "airimu:codenet",
        "wakeword:backbone",
        "matrix_game:image_encoder",
    ):
        config, component = config_of(fixed[label]), fixed[label]
        rows = next(axis.opt for axis in component.axes if axis.name == BATCH)
        assert config.max_batch_size == 0
        assert {tensor.dims[0] for tensor in (*config.input, *config.output)} == {rows}
        assert config.model_warmup[0].batch_size == 1


def test_request_has_the_same_shapes_when_the_rows_are_fixed() -> None:
    described = describe_all()
    for label, component in described.dynamic.items():
        batched, fixed = config_of(component), config_of(described.fixed[label])
        for one, other in zip((*batched.input, *batched.output), (*fixed.input, *fixed.output), strict=True):
            assert len(one.dims) + bool(batched.max_batch_size) == len(other.dims) + bool(
                fixed.max_batch_size
            )


def test_configuration_tells_the_range_of_every_axis() -> None:
    for label, component in describe_all().dynamic.items():
        config = as_server_reads(config_of(component))
        ranges = read_ranges("m", Settings("m", "unused", config).parameters)  # type: ignore[arg-type]
        assert ranges == {axis.name: (axis.min, axis.max) for axis in component.axes}, label
        shapes = {name: tensor.shape for name, tensor in signature_of(component).inputs.items()}
        sizes = InputSizes(shapes, ranges)
        for name, point in component.points().items():
            given = {tensor.name: tensor.at(point) for tensor in component.inputs}
            assert sizes.problems(given) == [], (label, name)


def test_input_is_refused_when_an_axis_is_beyond_its_range() -> None:
    for label, component in describe_all().dynamic.items():
        shapes = {name: tensor.shape for name, tensor in signature_of(component).inputs.items()}
        sizes = InputSizes(shapes, {axis.name: (axis.min, axis.max) for axis in component.axes})
        carried = {
            axis
            for tensor in component.inputs
            for size in component.varying(tensor)
            if not isinstance(size, int)
            for axis in size.axes
        }
        for axis in component.axes:
            if axis.name in carried:
                point = component.points()["max"] | {axis.name: axis.max + 1}
                given = {tensor.name: tensor.at(point) for tensor in component.inputs}
                (problem,) = sizes.problems(given)[:1]
                assert axis.name in problem, (label, axis, problem)
