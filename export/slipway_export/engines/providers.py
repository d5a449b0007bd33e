"""Execution providers of ONNX Runtime that the user requests for graphs on GPUs.

``slipway export --provider PROVIDER`` applies to all graphs that Triton's backend `onnxruntime` serves, and
``--provider NAME=PROVIDER`` to one. :func:`choose_providers` checks all of them before any work. A provider
that does not apply to a component is an error and is never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from slipway_export.engines.requested import ALL_COMPONENTS, parse_named
from slipway_export.graph.dialect import offered
from slipway_export.options import ExportOptions
from slipway_export.spec import Component, Engine
from slipway_serving.protocol.errors import raise_all


class Provider(StrEnum):
    """Execution provider of ONNX Runtime, under the name of Triton's execution accelerator."""

    CUDA = "cuda"
    TENSORRT = "tensorrt"


def parse_providers(texts: Sequence[str]) -> dict[str, str]:
    """Parse providers of the form ``PROVIDER`` or ``NAME=PROVIDER``.

    Returns:
        Providers by component name; the provider of all graphs has the key ``ALL_COMPONENTS``.

    Raises:
        InvalidRequest: A text is not valid, see :func:`slipway_export.engines.requested.parse_named`.
    """
    return parse_named("provider", texts, tuple(Provider))


def choose_providers(components: Sequence[Component], options: ExportOptions) -> dict[str, Provider]:
    """Return the requested provider of each component that has one, by the component's name.

    Args:
        components: Components of the export.
        options: Options of the export.

    Raises:
        InvalidRequest: A provider does not apply to a component. The message names every such component.
    """
    by_name = {component.name: component for component in components}
    served = [name for name, component in by_name.items() if not _unserved_reason(component, options)]
    requested = _by_component(options.providers, served)
    problems = [
        f"provider must name an exported component ({', '.join(by_name)}), got {name}"
        for name in requested
        if name not in by_name
    ]
    if options.providers.get(ALL_COMPONENTS) and not served:
        problems.append(
            "provider must be left out where ONNX Runtime serves no graph, got"
            f" {options.providers[ALL_COMPONENTS]}"
        )
    for name, provider in requested.items():
        if name in by_name:
            problems += _problems(by_name[name], provider, options)
    raise_all("export", problems)
    return requested


def _by_component(providers: Mapping[str, str], served: Sequence[str]) -> dict[str, Provider]:
    of_all = providers.get(ALL_COMPONENTS)
    values = {} if of_all is None else dict.fromkeys(served, of_all)
    values |= {name: value for name, value in providers.items() if name != ALL_COMPONENTS}
    return {name: Provider(value) for name, value in values.items()}


def _unserved_reason(component: Component, options: ExportOptions) -> str:
    """Return why Triton's backend `onnxruntime` does not serve a component; empty if it does."""
    placement = options.placements.get(component.name)
    engine = options.engine_of(component)
    if placement is not None and placement.server:
        return f"because the server {placement.server} runs its graph"
    if engine.backend != "onnxruntime":
        return f"because engine {engine.value} serves it without ONNX Runtime"
    if component.graph != "model":
        return "because its model runs the graphs itself, on the device of its place"
    return ""


def _problems(component: Component, provider: Provider, options: ExportOptions) -> list[str]:
    """Return every reason for which a component cannot have a provider."""
    name, engine = component.name, options.engine_of(component)
    if reason := _unserved_reason(component, options):
        return [f"provider of {name} must be left out, {reason}, got {provider.value}"]
    problems = []
    placement = options.placements.get(name)
    if placement is None or placement.kind != "gpu":
        place = "no place" if placement is None else placement.kind
        problems.append(
            f"provider of {name} must be left out unless it is placed on a GPU, got {provider.value} with"
            f" {place}; try --place {name}=gpu"
        )
    if provider is not Provider.TENSORRT:
        return problems
    if engine is Engine.ONNXRUNTIME:
        problems.append(
            f"provider of {name} must be {Provider.CUDA.value} with engine {engine.value}, whose graphs have"
            f" operators that TensorRT does not know, got {provider.value}; try --engine"
            f" {Engine.PORTABLE.value}"
        )
    precision = component.precision(options.requested_precision(component))
    # The graphs are portable ones, whose quantized products have operators that TensorRT does not know.
    able = [each for each in offered(component, Engine.TENSORRT) if not each.is_quantized]
    if precision not in able:
        problems.append(
            f"precision of {name} must be one of {', '.join(able)} with provider {provider.value}, got"
            f" {precision.value}"
        )
    return problems
