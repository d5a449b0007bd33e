"""Engines and options of engine ``torch`` as the user requests them on the command line.

``slipway export --engine ENGINE`` applies to all components and ``--engine NAME=ENGINE`` to one; the options
of engine ``torch`` have the same two forms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipway_export.spec import Engine, Precision
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.runtime.torch_engine.options import COMPILE_MODES, Offload, Weights

ALL_COMPONENTS = ""
"""Key for the value of all components in mappings by component name."""
_MIXED = (Engine.ONNXRUNTIME, Engine.TORCH, Engine.TENSORRT, Engine.TENSORRT_RTX)


@dataclass(frozen=True)
class TorchRequest:
    """Requested options of engine ``torch``, by component name or :data:`ALL_COMPONENTS`.

    Args:
        weights: Storage format of the weights.
        compile: Mode of ``torch.compile``.
        attention: Backend of diffusers' attention dispatcher, or ``sdpa``.
        offload: Parts of the component that leave the GPU while they are not needed.
        cuda_graphs: True to replay the GPU work of all components with CUDA graphs.
    """

    weights: Mapping[str, str] = field(default_factory=dict)
    compile: Mapping[str, str] = field(default_factory=dict)
    attention: Mapping[str, str] = field(default_factory=dict)
    offload: Mapping[str, str] = field(default_factory=dict)
    cuda_graphs: bool = False

    @property
    def by_flag(self) -> dict[str, Mapping[str, str]]:
        """Options that take a value, by flag."""
        return {
            "weights": self.weights,
            "compile": self.compile,
            "attention": self.attention,
            "offload": self.offload,
        }


def parse_named(flag: str, texts: Sequence[str], allowed: Sequence[str] = ()) -> dict[str, str]:
    """Parse option values of the form ``VALUE`` or ``NAME=VALUE``; names may have dashes for underscores.

    Args:
        flag: Name of the option, for messages.
        texts: Option values as typed.
        allowed: Allowed values; any value is allowed when empty.

    Returns:
        Values by component name; the value of all components has the key :data:`ALL_COMPONENTS`.

    Raises:
        InvalidRequest: A value is not allowed, or a component is given twice.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        name = name.replace("-", "_")
        if not value or (not name and "=" in text) or (allowed and value not in allowed):
            rule = f"one of {', '.join(allowed)}" if allowed else "a name"
            raise InvalidRequest(
                f"{flag} must be {rule}, or NAME={flag.upper()} for a component, got {text!r}"
            )
        if name in values:
            raise InvalidRequest(f"{flag} of {name or 'all'} must be given once, got {text!r} as well")
        values[name] = value
    return values


def parse_engines(texts: Sequence[str]) -> tuple[Engine, dict[str, Engine]]:
    """Parse engines of the form ``ENGINE`` or ``NAME=ENGINE``.

    Returns:
        Engine of all components, and the engines of components that differ, by component name.

    Raises:
        InvalidRequest: A text is not valid, see :func:`parse_named`.
    """
    engines = {name: Engine(value) for name, value in parse_named("engine", texts, tuple(Engine)).items()}
    return engines.pop(ALL_COMPONENTS, Engine.ONNXRUNTIME), engines


def parse_precisions(texts: Sequence[str]) -> tuple[Precision, dict[str, Precision]]:
    """Parse precisions, ``PRECISION`` or ``NAME=PRECISION`` each; names may have dashes for underscores.

    Returns:
        Precision of all components, and the precisions of components that differ, by name.

    Raises:
        InvalidRequest: A text names no precision, or a component is given twice.
    """
    precisions: dict[str, Precision] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        name = name.replace("-", "_")
        if value not in tuple(Precision) or (not name and "=" in text):
            raise InvalidRequest(
                f"precision must be one of {', '.join(Precision)}, or NAME=PRECISION for a component, got"
                f" {text!r}"
            )
        if name in precisions:
            raise InvalidRequest(f"precision of {name or 'all'} must be given once, got {text!r} as well")
        precisions[name] = Precision(value)
    return precisions.pop(ALL_COMPONENTS, Precision.FP32), precisions


def parse_torch(
    weights: Sequence[str],
    compile_: Sequence[str],
    attention: Sequence[str],
    offload: Sequence[str],
    *,
    cuda_graphs: bool,
) -> TorchRequest:
    """Parse the options of engine ``torch``, each as :func:`parse_named` does.

    Raises:
        InvalidRequest: An option has no such value, or is given twice.
    """
    return TorchRequest(
        parse_named("weights", weights, tuple(Weights)),
        parse_named("compile", compile_, COMPILE_MODES),
        parse_named("attention", attention),
        parse_named("offload", offload, tuple(Offload)),
        cuda_graphs,
    )


def check_engines(default: Engine, engines: Mapping[str, Engine]) -> None:
    """Check that one repository can contain all of these engines.

    Raises:
        InvalidRequest: The repository cannot mix the engines. The message names those that do not fit.
    """
    if not engines:
        return
    names = f"{', '.join(_MIXED[:-1])} or {_MIXED[-1]}"
    raise_all(
        "export",
        [
            f"engine{f' of {name}' if name else ''} must be {names} if components have different engines,"
            f" got {engine.value}"
            for name, engine in {ALL_COMPONENTS: default, **engines}.items()
            if engine not in _MIXED
        ],
    )
