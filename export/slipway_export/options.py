"""Options of an export from the user, checked before any work starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from slipway_export.checkpoint.lora.requests import NO_ADDITIONS, RequestedAdditions
from slipway_export.engines.device import Device
from slipway_export.engines.requested import TorchRequest, check_engines
from slipway_export.engines.tensorrt.requested import EngineRequest
from slipway_export.repository.placement import Placement
from slipway_export.repository.queues import QueueLimits
from slipway_export.spec import DEFAULT_BUDGET, Axis, Component, Engine, Precision
from slipway_serving.protocol.errors import InvalidRequest


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export from the user.

    Args:
        checkpoint: Preset, folder or hub id; empty if files are given.
        repository: Triton model repository to place the models in.
        engine: Engine that runs the components.
        engines: Engines of the components that differ, by component name.
        torch: Options for the components that PyTorch serves.
        tensorrt: Options for the components that TensorRT or TensorRT-RTX serves.
        precision: Precision of the graphs, and of PyTorch's arithmetic.
        precisions: Precisions of the components that differ, by component name.
        placements: Placements of components, by component name; the configurations decide when empty.
        providers: Execution providers of ONNX Runtime on GPUs, by component name; that of all graphs has an
            empty name.
        components: Names of the components to export; all, and the authored models, when empty.
        opset: ONNX operator set version; the precision's default when None.
        simplify: True to run onnxslim over each graph.
        check_only: True to export and verify, but place nothing.
        force: True to replace even models that were not written by an export.
        axes: Ranges that replace the defaults.
        variant: Name of one of the family's variants; the family's own plan when None.
        parts: Folder or hub id of each part that does not come from the checkpoint, by name.
        additions: LoRAs to merge into the weights, and defaults of the served model's schedule.
        variant_file: Variant of the weight files that is read of each part that has it; empty for none.
        sizes: Sizes that axes are traced at, by the family's option.
        fixed_shapes: True to restrict every axis to the size that is traced.
        files: Files of the checkpoint by role, for a family whose checkpoint may be given as files.
        output: File for the graph of one component, instead of a repository.
        verify_budget: Longest time that verification may take on this machine, by the estimate, in seconds.
        verify_device: Device that both the graph and PyTorch run on in verification.
        fresh: True to make every graph anew, even those identical to staged or placed ones.
        queues: Limits of the models' request queues.

    Raises:
        InvalidRequest: The budget is not above 0, or both or none of repository and output are given.
    """

    checkpoint: str
    repository: Path | None = None
    _: KW_ONLY
    engine: Engine = Engine.ONNXRUNTIME
    engines: Mapping[str, Engine] = field(default_factory=dict)
    torch: TorchRequest = field(default_factory=TorchRequest)
    tensorrt: EngineRequest = field(default_factory=EngineRequest)
    precision: Precision = Precision.FP32
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    providers: Mapping[str, str] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    opset: int | None = None
    simplify: bool = False
    check_only: bool = False
    force: bool = False
    axes: tuple[Axis, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    fixed_shapes: bool = False
    variant: str | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    additions: RequestedAdditions = NO_ADDITIONS
    variant_file: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)
    output: Path | None = None
    verify_budget: float = DEFAULT_BUDGET
    verify_device: Device = Device.CPU
    fresh: bool = False
    queues: QueueLimits = field(default_factory=QueueLimits)

    def __post_init__(self) -> None:
        if not self.verify_budget > 0:
            raise InvalidRequest(f"verify-budget must be above 0 seconds, got {self.verify_budget:g}")
        if (self.repository is None) == (self.output is None):
            raise InvalidRequest(
                "export: one of repository and output must be given, got both or none; try --repository DIR"
                " for models to serve, or --output FILE.onnx for one graph"
            )
        if self.output is not None and self.placements:
            raise InvalidRequest(
                f"place requires --repository, got --output with places of {', '.join(self.placements)}"
            )
        if self.output is not None and self.providers:
            given = ", ".join(f"{name}={value}".removeprefix("=") for name, value in self.providers.items())
            raise InvalidRequest(f"provider requires --repository, got --output with {given}")
        if self.output is not None and Engine.TORCH in (self.engine, *self.engines.values()):
            raise InvalidRequest("engine torch writes no graph file; use --repository instead of --output")
        check_engines(self.engine, self.engines)

    def requested_precision(self, component: Component) -> Precision:
        """Return the precision that the user requested for a component."""
        return self.precisions.get(component.name, self.precision)

    def engine_of(self, component: Component) -> Engine:
        """Return the engine that the user requested for a component."""
        return self.engines.get(component.name, self.engine)
