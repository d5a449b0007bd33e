"""Decisions of an export about what serves each component, made from the user's options before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipway_export.engines.choice import TorchChoice, choose_torch
from slipway_export.engines.providers import Provider, choose_providers
from slipway_export.engines.tensorrt.choice import EngineChoice, choose_engines
from slipway_export.options import ExportOptions
from slipway_export.spec import Component


@dataclass(frozen=True)
class Decisions:
    """How the components of an export are served.

    Args:
        torch: Settings of the components that PyTorch serves, by label.
        engines: Choices of how the engines of TensorRT are built, by label.
        providers: Execution providers of ONNX Runtime on GPUs, by the component's name.
    """

    torch: Mapping[str, TorchChoice] = field(default_factory=dict)
    engines: Mapping[str, EngineChoice] = field(default_factory=dict)
    providers: Mapping[str, Provider] = field(default_factory=dict)

    def of(self, component: Component) -> TorchChoice | EngineChoice | None:
        """Return the settings that change the files of a component; None if only its engine does."""
        return self.torch.get(component.label) or self.engines.get(component.label)


def decide(
    components: Sequence[Component], served_here: Sequence[Component], options: ExportOptions
) -> Decisions:
    """Return how the components of an export are served.

    Args:
        components: Components of the export.
        served_here: Components that this server runs.
        options: Options of the export.

    Raises:
        InvalidRequest: An option does not apply to a component, its placement or this machine.
    """
    providers = choose_providers(components, options)
    return Decisions(choose_torch(served_here, options), choose_engines(served_here, options), providers)
