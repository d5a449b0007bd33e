"""Which engine serves each component, and how PyTorch runs those that it serves: chosen, and refused, here.

``slipway export --engine ENGINE`` is of all components, ``--engine NAME=ENGINE`` of one, and so are the
options of engine ``torch``. :func:`choose_torch` looks at all of them before any work: what does not apply to
a component, its place or this machine is an error, and nothing is left out in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipway_export.device import Device
from slipway_export.dialect import check_precision
from slipway_export.spec import Component, Engine, Precision, Tolerance
from slipway_serving.errors import InvalidRequest, raise_all
from slipway_serving.torch_engine.options import COMPILE_MODES, Offload, TorchOptions, Weights

if TYPE_CHECKING:
    from slipway_export.run import ExportOptions

OF_ALL = ""
"""Stands for all components where options are kept by name of the component."""
_MIXED = (Engine.ONNXRUNTIME, Engine.TORCH)
# Whose bounds hold for weights of a format: those of as many bits.
_BOUNDS = {
    Weights.BF16: Precision.BF16,
    Weights.FP8: Precision.INT8,
    Weights.INT8: Precision.INT8,
    Weights.INT4: Precision.INT4,
}


@dataclass(frozen=True)
class TorchAsked:
    """What a user asked of engine ``torch``, by name of the component; :data:`OF_ALL` for all.

    Args:
        weights: how they are held.
        compile: mode of ``torch.compile``.
        attention: a backend of diffusers' dispatcher, or ``sdpa``.
        offload: what leaves the GPU while it is not needed.
        cuda_graphs: replay the work on the GPU, of all components.
    """

    weights: Mapping[str, str] = field(default_factory=dict)
    compile: Mapping[str, str] = field(default_factory=dict)
    attention: Mapping[str, str] = field(default_factory=dict)
    offload: Mapping[str, str] = field(default_factory=dict)
    cuda_graphs: bool = False

    @property
    def by_flag(self) -> dict[str, Mapping[str, str]]:
        """The options that have values, by flag."""
        return {
            "weights": self.weights,
            "compile": self.compile,
            "attention": self.attention,
            "offload": self.offload,
        }


@dataclass(frozen=True)
class TorchChoice:
    """How PyTorch serves a component.

    Args:
        options: of the program.
        bounds: precisions whose bounds it must keep; of several the widest.
        on_gpu: its instances run on GPUs.
        kept: its precision or weights are not those that were asked for all, which it has no bounds for.
    """

    options: TorchOptions
    bounds: tuple[Precision, ...]
    on_gpu: bool = False
    kept: bool = False

    def tolerance(self, component: Component) -> Tolerance:
        """Return the bounds of a component that it serves."""
        return widest([component.tolerance[precision] for precision in self.bounds])

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {**self.options.parameters(), "on_gpu": self.on_gpu}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], component: Component) -> TorchChoice:
        """Read it from a manifest."""
        options = TorchOptions.from_parameters(component.label, {k: str(v) for k, v in facts.items()})
        return cls(options, bounds_of(component, options), facts["on_gpu"])


def widest(bounds: Sequence[Tolerance]) -> Tolerance:
    """Return bounds that whatever keeps any of several keeps."""
    rows = [bound.row_cosine for bound in bounds]
    return Tolerance(
        max_abs=max(bound.max_abs for bound in bounds),
        relative_l2=max(bound.relative_l2 for bound in bounds),
        cosine=min(bound.cosine for bound in bounds),
        row_cosine=None if None in rows else min(row for row in rows if row is not None),
    )


def bounds_of(component: Component, options: TorchOptions) -> tuple[Precision, ...]:
    """Return the precisions whose bounds a component must keep: of its arithmetic, and of its weights."""
    found = [component.precision(Precision(options.precision))]
    if options.weights is not None:
        found.append(_BOUNDS[options.weights])
    return tuple(dict.fromkeys(found))


def parse_named(flag: str, texts: Sequence[str], allowed: Sequence[str] = ()) -> dict[str, str]:
    """Parse ``VALUE`` or ``NAME=VALUE`` each; names may have dashes for underscores.

    Args:
        flag: the option, for messages.
        texts: as typed.
        allowed: values; any when empty.

    Returns:
        Values by name of the component; that of all under :data:`OF_ALL`.

    Raises:
        InvalidRequest: there is no such value, or one is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        name = name.replace("-", "_")
        if not value or (not name and "=" in text) or (allowed and value not in allowed):
            rule = f"one of {', '.join(allowed)}" if allowed else "a name"
            raise InvalidRequest(
                f"{flag} must be {rule}, or NAME={flag.upper()} for a component, got {text!r}"
            )
        if name in found:
            raise InvalidRequest(f"{flag} of {name or 'all'} must be given once, got {text!r} too")
        found[name] = value
    return found


def parse_engines(texts: Sequence[str]) -> tuple[Engine, dict[str, Engine]]:
    """Parse engines, ``ENGINE`` or ``NAME=ENGINE`` each.

    Returns:
        That of all components, and those of components that differ, by name.

    Raises:
        InvalidRequest: as :func:`parse_named`.
    """
    found = {name: Engine(value) for name, value in parse_named("engine", texts, tuple(Engine)).items()}
    return found.pop(OF_ALL, Engine.ONNXRUNTIME), found


def parse_torch(
    weights: Sequence[str],
    compile_: Sequence[str],
    attention: Sequence[str],
    offload: Sequence[str],
    *,
    cuda_graphs: bool,
) -> TorchAsked:
    """Parse the options of engine ``torch``, each as :func:`parse_named` does.

    Raises:
        InvalidRequest: an option has no such value, or is given twice.
    """
    return TorchAsked(
        parse_named("weights", weights, tuple(Weights)),
        parse_named("compile", compile_, COMPILE_MODES),
        parse_named("attention", attention),
        parse_named("offload", offload, tuple(Offload)),
        cuda_graphs,
    )


def check_engines(of_all: Engine, engines: Mapping[str, Engine]) -> None:
    """Refuse engines that no repository mixes.

    Raises:
        InvalidRequest: names them.
    """
    if not engines:
        return
    names = " and ".join(_MIXED)
    raise_all(
        "export",
        [
            f"engine{f' of {name}' if name else ''} must be {names} where components have engines of their"
            f" own, got {engine.value}"
            for name, engine in {OF_ALL: of_all, **engines}.items()
            if engine not in _MIXED
        ],
    )


def choose_torch(components: Sequence[Component], options: ExportOptions) -> dict[str, TorchChoice]:
    """Return how PyTorch serves the components of an export that it serves, by their label.

    Args:
        components: that this server runs.
        options: of the export.

    Raises:
        InvalidRequest: names every option that does not apply to a component, its place, this machine or an
            export without a graph: the rule and the value.
    """
    served = [component for component in components if options.engine_of(component) is Engine.TORCH]
    problems = [*_unknown_names(components, served, options), *_useless(served, options)]
    choices: dict[str, TorchChoice] = {}
    for component in served:
        try:
            choice = _choice(component, options)
        except InvalidRequest as error:
            problems.append(str(error))
            continue
        choices[component.label] = choice
        problems += _of_devices(component, choice, options.verify_device)
    if choices and len(choices) == len(components):
        problems += _of_graphs(options)
    problems += _attention_problems(components, choices)
    raise_all("export", list(dict.fromkeys(problems)))
    if options.engine is Engine.TORCH:
        for component in components:
            if component.label not in choices:
                check_precision(options.engine_of(component), options.asked(component))
    return choices


def _of_devices(component: Component, choice: TorchChoice, verified_on: Device) -> list[str]:
    """Say what of a choice the devices that serve and that verify it cannot do."""
    problems = choice.options.problems(component.name, on_gpu=choice.on_gpu)
    if not choice.on_gpu and verified_on is Device.CUDA:
        problems += choice.options.problems(component.name, on_gpu=True)
    if choice.on_gpu and verified_on is Device.CPU and _needs_gpu(choice.options):
        problems.append(
            f"verify-device must be cuda for {component.name}, whose options need a GPU"
            f" ({choice.options.words}), got cpu"
        )
    return problems


def _of_graphs(options: ExportOptions) -> list[str]:
    """Say which options are of graphs, where there are none."""
    given = {"opset-version": options.opset, "simplify": options.simplify or None}
    return [
        f"{flag} must be left out with engine torch, which makes no graph, got {value}"
        for flag, value in given.items()
        if value is not None
    ]


def _attention_problems(components: Sequence[Component], choices: Mapping[str, TorchChoice]) -> list[str]:
    """Say which attentions networks cannot take, found on networks without their weights."""
    problems = []
    for component in components:
        attention = choices[component.label].options.attention if component.label in choices else None
        if attention is None:
            continue
        from slipway_export.weights import left_out
        from slipway_serving.torch_engine.attention import set_attention

        with left_out():
            network = component.load(Precision.FP32)
        try:
            set_attention(network, attention, component.name)
        except InvalidRequest as error:
            problems.append(str(error))
    return problems


def _choice(component: Component, options: ExportOptions) -> TorchChoice:
    asked, precision = options.torch, options.asked(component)
    place = options.places.get(component.name)

    def of(values: Mapping[str, str]) -> str | None:
        return values.get(component.name, values.get(OF_ALL))

    text = of(asked.weights)
    weights = None if text is None else Weights(text)
    kept = weights is not None and _BOUNDS[weights] not in component.tolerance
    if kept and component.name in asked.weights:
        able = [each.value for each, bounds in _BOUNDS.items() if bounds in component.tolerance]
        rule = f"one of {', '.join(able)}" if able else "left out"
        raise InvalidRequest(f"weights of {component.name} must be {rule}, got {text}")
    # A precision that a component lacks stays float32, as in its graph; integers are weights here.
    arithmetic = precision if precision.is_integer else component.precision(precision)
    made = TorchOptions(
        precision=arithmetic.value,
        weights=None if kept else weights,
        compile=of(asked.compile),
        attention=of(asked.attention),
        cuda_graphs=asked.cuda_graphs,
        offload=Offload(of(asked.offload) or Offload.NONE),
    )
    on_gpu = place is not None and place.kind == "gpu"
    bounds = () if precision.is_integer else bounds_of(component, made)
    return TorchChoice(made, bounds, on_gpu, kept or arithmetic is not precision)


def _needs_gpu(options: TorchOptions) -> bool:
    return bool(options.problems("", on_gpu=False)) or options.weights is Weights.INT4


def _unknown_names(
    components: Sequence[Component], served: Sequence[Component], options: ExportOptions
) -> list[str]:
    known = list(dict.fromkeys(component.name for component in components))
    by_torch = {component.name for component in served}
    able = ", ".join(sorted(by_torch)) or "none"
    problems = [
        f"engine must be of a component that is exported here ({', '.join(known)}), got {name}"
        for name in options.engines
        if name not in known
    ]
    for flag, values in options.torch.by_flag.items():
        problems += [
            f"{flag} must be of a component that engine torch serves ({able}), got {name}={value}; try"
            f" --engine {name}=torch"
            for name, value in values.items()
            if name != OF_ALL and name not in by_torch
        ]
    return problems


def _useless(served: Sequence[Component], options: ExportOptions) -> list[str]:
    if served:
        return []
    asked = options.torch
    given = {flag: values[OF_ALL] for flag, values in asked.by_flag.items() if OF_ALL in values}
    if asked.cuda_graphs:
        given["cuda-graphs"] = "it"
    return [f"{flag} must be given with --engine torch, got {value}" for flag, value in given.items()]
