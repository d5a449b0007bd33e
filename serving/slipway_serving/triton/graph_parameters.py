"""Parameters of models that run ONNX graphs: which of them each backend understands, and what else happens.

A repository serves with Triton's C++ backend `onnxruntime` and with ours, in Python. Both read the parameters
of the C++ backend's README; each has some of its own. :func:`ignored_parameters` names those in a repository
that have no effect in the chosen backend, with the consequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from slipway_serving.protocol.export_facts import ENGINE_PARAMETER, PARITY_PARAMETER, PRECISION_PARAMETER
from slipway_serving.runtime.input_sizes import AXES_PARAMETER
from slipway_serving.runtime.queue_limits import QUEUE_LIMIT_PARAMETER, QUEUE_MODELS_PARAMETER
from slipway_serving.triton.install.setup import ONNXRUNTIME
from slipway_serving.triton.start.checks import read_config


@dataclass(frozen=True)
class GraphParameter:
    """A parameter of a model that runs an ONNX graph.

    Attributes:
        pattern: Name of the parameter, or a pattern of names.
        native: True if Triton's C++ backend understands it.
        python: True if our Python backend understands it.
        otherwise: Consequence where it has no effect.
    """

    pattern: str
    native: bool = True
    python: bool = True
    otherwise: str = ""


PARAMETERS = (
    *(
        GraphParameter(name)
        for name in (
            "intra_op_thread_count",
            "inter_op_thread_count",
            "execution_mode",
            "enable_mem_arena",
            "enable_mem_pattern",
            "memory.enable_memory_arena_shrinkage",
            "cudnn_conv_algo_search",
            "arena_extend_strategy",
            "do_copy_in_default_stream",
            "gpu_mem_limit",
            "session.use_device_allocator_for_initializers",
            "slipway_start",  # The supervisor's own, which no code reads.
            ENGINE_PARAMETER,  # Clients read the facts about the export.
            PRECISION_PARAMETER,
            PARITY_PARAMETER,
        )
    ),
    GraphParameter("session.*", native=False, otherwise="threads of ONNX Runtime spin as is its default"),
    GraphParameter(
        AXES_PARAMETER,
        native=False,
        otherwise="where a client calls a graph itself, a size outside the ranges is computed however large"
        " it is, or fails with code INTERNAL; the models in front of graphs check sizes",
    ),
    GraphParameter(
        QUEUE_LIMIT_PARAMETER,
        native=False,
        otherwise="any number of requests may wait, unless config.pbtxt has Triton's own max_queue_size",
    ),
    GraphParameter(QUEUE_MODELS_PARAMETER, native=False, otherwise="requests of further models do not count"),
    GraphParameter("default_memory_arena_cfg", python=False, otherwise="the arena grows as is its default"),
)
"""Known parameters; the first pattern that fits a name counts."""
_UNKNOWN = GraphParameter(
    "*", native=False, python=False, otherwise="neither backend of ONNX graphs reads it"
)


def ignored_parameters(models: Sequence[Path], *, native: bool) -> Iterator[str]:
    """Yield a line for each parameter that has no effect in the chosen backend, with its consequence.

    Args:
        models: Folders of the models.
        native: True if Triton's C++ backend runs the graphs, False if ours does.
    """
    users: dict[str, list[str]] = {}
    for model in models:
        config = read_config(model)
        if config is not None and config.backend == ONNXRUNTIME:
            for name in config.parameters:
                known = _find(name)
                if not (known.native if native else known.python):
                    users.setdefault(name, []).append(model.name)
    backend = "Triton's C++ backend" if native else "Slipway's Python backend"
    other = "python" if native else "native"
    for name, names in sorted(users.items()):
        known = _find(name)
        hint = "" if known is _UNKNOWN else f" (--onnxruntime-backend {other} obeys it)"
        yield (f"parameter {name} of {', '.join(names)} has no effect in {backend}: {known.otherwise}{hint}")


def _find(name: str) -> GraphParameter:
    return next((each for each in PARAMETERS if fnmatchcase(name, each.pattern)), _UNKNOWN)
