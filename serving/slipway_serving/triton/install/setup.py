"""How a server uses its Triton: which backend runs ONNX graphs, and which models run inside the server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slipway_serving.protocol.errors import NotReady
from slipway_serving.triton.install.layout import environment, lay_out_backends, lay_out_interpreter
from slipway_serving.triton.install.locate import TritonInstall

OnnxRuntimeBackend = Literal["native", "python"]
ONNXRUNTIME = "onnxruntime"


@dataclass(frozen=True)
class TritonSetup:
    """A Triton, and the choice of the backend that runs ONNX graphs in it.

    Attributes:
        install: Triton to start.
        native: True if the Triton's own C++ backend runs ONNX graphs, False if ours does, in Python.
    """

    install: TritonInstall
    native: bool

    @classmethod
    def choose(cls, install: TritonInstall, requested: OnnxRuntimeBackend | None) -> TritonSetup:
        """Choose the backend of ONNX graphs.

        Args:
            install: Triton to start.
            requested: Backend that the user requested; None takes the C++ backend where there is one.

        Raises:
            NotReady: The C++ backend was requested, and this Triton has none.
        """
        has_native = install.has_library(ONNXRUNTIME)
        if requested == "native" and not has_native:
            raise NotReady(
                f"server: onnxruntime-backend must be python with the Triton in {install.folder}, which has"
                " no C++ backend for ONNX graphs, got native; try NGC's image tritonserver"
            )
        return cls(install, has_native and requested != "python")

    @property
    def library_backends(self) -> frozenset[str]:
        """Names of the backends that are C++ libraries, whose models run inside the server."""
        names = {path.name for path in self.install.backends.iterdir() if self.install.has_library(path.name)}
        return frozenset(names - {"python"} - (set() if self.native else {ONNXRUNTIME}))

    @property
    def summary(self) -> str:
        """Version and folder of the Triton and the backend of ONNX graphs, for people."""
        backend = "its C++ backend" if self.native else "Slipway's Python backend"
        return f"{self.install.version} in {self.install.folder}; {backend} runs ONNX graphs"

    def lay_out(self, folder: Path, base: Mapping[str, str]) -> None:
        """Write the backends and the interpreter of the stubs into a server's private folder.

        Args:
            folder: Private folder of the server.
            base: Environment variables of this process.
        """
        lay_out_backends(self.install, folder / "backends", native=self.native)
        lay_out_interpreter(folder / "interpreter", base)

    def environment(self, folder: Path, base: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of the server; arguments as for :meth:`lay_out`."""
        return environment(self.install, folder / "interpreter", base)


def runs_inside(backend: str, runtime: str, library_backends: Collection[str]) -> bool:
    """Return True if a model runs inside the server, so that it dies with it and has no process of its own.

    Args:
        backend: Backend in the model's configuration; an ensemble has none.
        runtime: Field `runtime` of the configuration; a Python file makes the backend run in processes.
        library_backends: Value of :attr:`TritonSetup.library_backends`.
    """
    return not backend or (backend in library_backends and not runtime.endswith(".py"))
