"""Configuration of the routes of trained models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from slipway_export.spec import Family, Precision
from slipway_export.trained_models import Library
from slipway_gateway.trained_models.worker import Job
from slipway_serving.triton.control import ModelControl


@dataclass(frozen=True)
class Management:
    """Configuration of the routes of trained models.

    Args:
        family: Model family of the trained models.
        library: Library over the models folder.
        repository: Triton model repository that receives the exports.
        triton: Control client for the server of that repository; None if no server is to load the exports.
        export_limit_s: Longest time for one export, in seconds.
    """

    family: Family
    library: Library
    repository: Path
    triton: ModelControl | None = None
    export_limit_s: float = 1800.0

    def __post_init__(self) -> None:
        # The paths must not depend on the working directory of the process that uses them.
        object.__setattr__(self, "library", replace(self.library, folder=self.library.folder.resolve()))
        object.__setattr__(self, "repository", self.repository.resolve())

    def job(self, model: str, precision: Precision, variant: str | None) -> Job:
        """Return the job that exports a model."""
        return Job(
            family=self.family.name,
            model=model,
            models=str(self.library.folder),
            repository=str(self.repository),
            precision=precision.value,
            variant=variant,
            triton=self.triton.url if self.triton else None,
            control_token=self.triton.token if self.triton else None,
        )
