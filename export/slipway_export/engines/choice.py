"""Choice of the engine for each component, and of the options with which PyTorch serves components.

``slipway export --engine ENGINE`` applies to all components and ``--engine NAME=ENGINE`` to one; the options
of engine ``torch`` have the same two forms. :func:`choose_torch` checks all of them before any work. An
option that does not apply to a component, its placement or this machine is an error and is never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway_export.engines.device import Device
from slipway_export.engines.requested import ALL_COMPONENTS
from slipway_export.graph.dialect import check_precision
from slipway_export.options import ExportOptions
from slipway_export.spec import Component, Engine, Loading, Precision, Tolerance
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.runtime.torch_engine.options import Offload, TorchOptions, Weights

# Weights of a format must keep the bounds of the precision with as many bits.
_BOUNDS = {
    Weights.BF16: Precision.BF16,
    Weights.FP8: Precision.INT8,
    Weights.INT8: Precision.INT8,
    Weights.INT4: Precision.INT4,
}


@dataclass(frozen=True)
class TorchChoice:
    """Settings with which PyTorch serves a component.

    Args:
        options: Options of the program.
        bounds: Precisions whose bounds apply; if there are several, the widest bounds apply.
        on_gpu: True if its instances run on GPUs.
        differs: True if the precision or the weights differ from those requested for all components, because
            the component has no bounds for the requested ones.
    """

    options: TorchOptions
    bounds: tuple[Precision, ...]
    on_gpu: bool = False
    differs: bool = False

    def tolerance(self, component: Component) -> Tolerance:
        """Return the bounds that apply to a component served with these settings."""
        return widest([component.tolerance[precision] for precision in self.bounds])

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of these settings in the manifest."""
        return {**self.options.parameters(), "on_gpu": self.on_gpu}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], component: Component) -> TorchChoice:
        """Read the settings from their manifest entries."""
        options = TorchOptions.from_parameters(component.label, {k: str(v) for k, v in facts.items()})
        return cls(options, bounds_of(component, options), facts["on_gpu"])


def widest(bounds: Sequence[Tolerance]) -> Tolerance:
    """Return the widest of several bounds: whatever satisfies any of them satisfies the result."""
    rows = [bound.row_cosine for bound in bounds]
    return Tolerance(
        max_abs=max(bound.max_abs for bound in bounds),
        relative_l2=max(bound.relative_l2 for bound in bounds),
        cosine=min(bound.cosine for bound in bounds),
        row_cosine=None if None in rows else min(row for row in rows if row is not None),
    )


def bounds_of(component: Component, options: TorchOptions) -> tuple[Precision, ...]:
    """Return the precisions of a component's arithmetic and weights, whose bounds it must keep."""
    found = [component.precision(Precision(options.precision))]
    if options.weights is not None:
        found.append(_BOUNDS[options.weights])
    return tuple(dict.fromkeys(found))


def choose_torch(components: Sequence[Component], options: ExportOptions) -> dict[str, TorchChoice]:
    """Return the settings of the components that PyTorch serves in an export, by component label.

    Args:
        components: Components that this server runs.
        options: Options of the export.

    Raises:
        InvalidRequest: An option does not apply to a component, its placement, this machine or an export
            without a graph. The message names each such option with the rule and the value.
    """
    served = [component for component in components if options.engine_of(component) is Engine.TORCH]
    problems = [
        *_unknown_name_problems(components, served, options),
        *_unused_option_problems(served, options),
    ]
    choices: dict[str, TorchChoice] = {}
    for component in served:
        try:
            choice = _choose(component, options)
        except InvalidRequest as error:
            problems.append(str(error))
            continue
        choices[component.label] = choice
        problems += _device_problems(component, choice, options.verify_device)
    if choices and len(choices) == len(components):
        problems += _graph_option_problems(options)
    problems += _attention_problems(components, choices)
    raise_all("export", list(dict.fromkeys(problems)))
    if options.engine is Engine.TORCH:
        for component in components:
            if component.label not in choices:
                check_precision(options.engine_of(component), options.requested_precision(component))
    return choices


def _device_problems(component: Component, choice: TorchChoice, verified_on: Device) -> list[str]:
    """Return the problems of settings that the serving or the verifying device does not support."""
    problems = choice.options.problems(component.name, on_gpu=choice.on_gpu)
    if not choice.on_gpu and verified_on is Device.CUDA:
        problems += choice.options.problems(component.name, on_gpu=True)
    if choice.on_gpu and verified_on is Device.CPU and _needs_gpu(choice.options):
        problems.append(
            f"verify-device must be cuda for {component.name}, whose options need a GPU"
            f" ({choice.options.summary}), got cpu"
        )
    return problems


def _graph_option_problems(options: ExportOptions) -> list[str]:
    """Return a problem for each given option that only applies to graphs, for an export without graphs."""
    values = {"opset-version": options.opset, "simplify": options.simplify or None}
    return [
        f"{flag} must be left out with engine torch, which writes no graph, got {value}"
        for flag, value in values.items()
        if value is not None
    ]


def _attention_problems(components: Sequence[Component], choices: Mapping[str, TorchChoice]) -> list[str]:
    """Return the problems of attention backends that networks cannot use, tried without their weights."""
    problems = []
    for component in components:
        attention = choices[component.label].options.attention if component.label in choices else None
        if attention is None:
            continue
        from slipway_serving.runtime.torch_engine.attention import set_attention

        network = component.load(Precision.FP32, Loading.META)
        try:
            set_attention(network, attention, component.name)
        except InvalidRequest as error:
            problems.append(str(error))
    return problems


def _choose(component: Component, options: ExportOptions) -> TorchChoice:
    """Return the settings with which PyTorch serves a component."""
    requested, precision = options.torch, options.requested_precision(component)
    placement = options.placements.get(component.name)

    def value_of(values: Mapping[str, str]) -> str | None:
        return values.get(component.name, values.get(ALL_COMPONENTS))

    text = value_of(requested.weights)
    weights = None if text is None else Weights(text)
    without_bounds = weights is not None and _BOUNDS[weights] not in component.tolerance
    if without_bounds and component.name in requested.weights:
        able = [each.value for each, bounds in _BOUNDS.items() if bounds in component.tolerance]
        rule = f"one of {', '.join(able)}" if able else "left out"
        raise InvalidRequest(f"weights of {component.name} must be {rule}, got {text}")
    # A component without bounds for a precision stays float32, as in its graph. A quantized precision stays
    # as it is and is refused later, because engine torch has it only as a format of weights.
    arithmetic = precision if precision.is_quantized else component.precision(precision)
    chosen = TorchOptions(
        precision=arithmetic.value,
        weights=None if without_bounds else weights,
        compile=value_of(requested.compile),
        attention=value_of(requested.attention),
        cuda_graphs=requested.cuda_graphs,
        offload=Offload(value_of(requested.offload) or Offload.NONE),
    )
    on_gpu = placement is not None and placement.kind == "gpu"
    bounds = () if precision.is_quantized else bounds_of(component, chosen)
    return TorchChoice(chosen, bounds, on_gpu, without_bounds or arithmetic is not precision)


def _needs_gpu(options: TorchOptions) -> bool:
    return bool(options.problems("", on_gpu=False)) or options.weights is Weights.INT4


def _unknown_name_problems(
    components: Sequence[Component], served: Sequence[Component], options: ExportOptions
) -> list[str]:
    """Return a problem for each option that names a component to which it does not apply."""
    known = list(dict.fromkeys(component.name for component in components))
    by_torch = {component.name for component in served}
    able = ", ".join(sorted(by_torch)) or "none"
    problems = [
        f"engine must name a component that this repository serves ({', '.join(known)}), got {name}"
        for name in options.engines
        if name not in known
    ]
    for flag, values in options.torch.by_flag.items():
        problems += [
            f"{flag} must name a component that engine torch serves ({able}), got {name}={value}; try"
            f" --engine {name}=torch"
            for name, value in values.items()
            if name != ALL_COMPONENTS and name not in by_torch
        ]
    return problems


def _unused_option_problems(served: Sequence[Component], options: ExportOptions) -> list[str]:
    """Return a problem for each option of engine ``torch`` if PyTorch serves no component."""
    if served:
        return []
    requested = options.torch
    unused = {
        flag: values[ALL_COMPONENTS] for flag, values in requested.by_flag.items() if ALL_COMPONENTS in values
    }
    if requested.cuda_graphs:
        unused["cuda-graphs"] = "it"
    return [f"{flag} must be given with --engine torch, got {value}" for flag, value in unused.items()]
