"""Choice of how the engine of each component is built, made before any work.

:func:`choose_engines` checks the options against the libraries and the GPU of this machine. It refuses what
cannot be built here in one line that says what works. Where a graph is only checked, and the requested
library is not installed, TensorRT-RTX stands in for TensorRT, and without either the graph is not parsed; the
export says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipway_export.engines.tensorrt.plan import EngineOptions, Profiles
from slipway_export.engines.tensorrt.requested import EngineRequest
from slipway_export.options import ExportOptions
from slipway_export.spec import Component, Precision
from slipway_serving.protocol.distribution import install_hint
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.runtime.tensorrt.library import Library
from slipway_serving.system.gpu import compute_capabilities, target_of

CHECKED_TARGET = "sm89"
"""Target of a check on a machine without a GPU if the user names none; it has every precision."""
# The first generation of GPUs with kernels of a precision.
_FIRST_TARGET = {Precision.BF16: 80, Precision.FP8: 89}


@dataclass(frozen=True)
class EngineChoice:
    """How a component's graph is built into an engine.

    Args:
        library: Library that builds it.
        version: Version of the library.
        targets: GPUs that it is built for.
        profiles: Optimization profiles.
        options: Options of the builder.
        placed: True if the engine is placed; False if it only shows that the graph can be built.
        instead_of: Library that the user asked for, if another one checks the graph in its place.
    """

    library: Library
    version: str
    targets: tuple[str, ...]
    profiles: Profiles
    options: EngineOptions
    placed: bool
    instead_of: Library | None = None

    @property
    def text(self) -> str:
        """The choice in words, for progress."""
        place = "" if self.instead_of is None else f", in place of {self.instead_of.full_name}"
        return f"{self.library.full_name} {self.version} for {', '.join(self.targets)}{place}"


def choose_engines(components: Sequence[Component], options: ExportOptions) -> dict[str, EngineChoice]:
    """Return how the engines of an export are built, by component label; none of a graph that is not parsed.

    Args:
        components: Components that this server runs.
        options: Options of the export.

    Raises:
        InvalidRequest: An engine cannot be built on this machine, or an option does not apply. The message
            names each problem and what works.
    """
    built = [component for component in components if options.engine_of(component).is_tensorrt]
    if not built:
        raise_all(
            "export",
            [
                f"{flag} must be given with --engine tensorrt or tensorrt-rtx, got {value}"
                for flag, value in options.tensorrt.given.items()
            ],
        )
        return {}
    choices: dict[str, EngineChoice] = {}
    problems: list[str] = []
    placed = not options.check_only and options.output is None
    for component in built:
        library = Library(options.engine_of(component).value)
        try:
            choice = choose_engine(library, options.tensorrt, placed=placed)
            if choice is None:
                continue
            check_target(component, options.requested_precision(component), choice)
            choices[component.label] = choice
        except InvalidRequest as error:
            problems.append(str(error))
    raise_all("export", list(dict.fromkeys(problems)))
    return choices


def choose_engine(library: Library, request: EngineRequest, *, placed: bool) -> EngineChoice | None:
    """Return how a library builds an engine here; None if no library is there to check a graph.

    Args:
        library: Library that the user asked for.
        request: Options from the user.
        placed: True if the engine is to be used, False if the graph is only checked.

    Raises:
        InvalidRequest: The library cannot build the engine on this machine.
    """
    version, used = library.installed_version, library
    if version is None and not placed:
        version, used = Library.RTX.installed_version, Library.RTX
        if version is None:
            return None
    if version is None:
        raise InvalidRequest(_missing(library))
    # A library that stands in checks the requested targets that it has.
    targets = tuple(each for each in request.targets if used is library or each in used.targets)
    gpus = [target_of(capability) for capability in compute_capabilities()]
    targets = _rtx_targets(targets, gpus, placed=placed) if used.targets else _own_targets(targets, gpus)
    _check_options(used, request.options, gpus)
    choice = EngineChoice(used, version, targets, request.profiles, request.options, placed)
    return choice if used is library else replace(choice, instead_of=library)


def _missing(library: Library) -> str:
    others = [each for each in Library if each is not library and each.installed_version]
    ways = [
        "the image `export` on a GPU machine (docker compose --profile gpu run --rm export-gpu)"
        if library is Library.TENSORRT
        else install_hint(library.extra),
        *(f"--engine {each.value}" for each in others),
        "--check-only, which verifies the graphs without building engines",
    ]
    return (
        f"engine {library.value} must have {library.full_name} installed to build engines, got a machine"
        f" without it; try {', or '.join(ways)}"
    )


def _rtx_targets(targets: tuple[str, ...], gpus: Sequence[str], *, placed: bool) -> tuple[str, ...]:
    """Return the targets of TensorRT-RTX: the given ones, else the GPU at hand, else one for a check."""
    known = Library.RTX.targets
    own = tuple(dict.fromkeys(gpu for gpu in gpus if placed or gpu in known))
    named = targets or own or (() if placed else (CHECKED_TARGET,))
    if not named:
        raise InvalidRequest(
            f"target must be one of {', '.join(known)} on a machine without a GPU, got none; try"
            " --target sm89"
        )
    if unknown := [target for target in named if target not in known]:
        raise InvalidRequest(
            f"target of engine tensorrt-rtx must be one of {', '.join(known)}, got {', '.join(unknown)}; for"
            " data-centre GPUs try --engine tensorrt in the image `export`, or --engine torch"
        )
    return named


def _own_targets(targets: tuple[str, ...], gpus: Sequence[str]) -> tuple[str, ...]:
    """Return the target of TensorRT, which builds for the GPU at hand."""
    if not gpus:
        raise InvalidRequest(
            "engine tensorrt must be built on the GPU that serves it, got a machine without an NVIDIA GPU;"
            " try the image `export` on a GPU machine, or --engine tensorrt-rtx --target sm89"
        )
    if targets not in ((), (gpus[0],)):
        raise InvalidRequest(
            f"target of engine tensorrt must be that of this machine's first GPU, {gpus[0]}, got"
            f" {', '.join(targets)}"
        )
    return (gpus[0],)


def _check_options(library: Library, options: EngineOptions, gpus: Sequence[str]) -> None:
    """Refuse builder options that a library or this machine does not support."""
    if library is Library.RTX and options.timing_cache is not None:
        raise InvalidRequest(
            "timing-cache must be left out with engine tensorrt-rtx, which measures nothing while it builds,"
            f" got {options.timing_cache}"
        )
    if options.strip_weights and library is Library.TENSORRT:
        raise InvalidRequest(
            "refit must be left out with engine tensorrt, whose Triton backend does not refit, got it"
        )
    if options.strip_weights and not gpus:
        raise InvalidRequest(
            "refit must be given on a machine with an NVIDIA driver, without which the builder makes no"
            " engine that can be refitted, got it"
        )


def check_target(component: Component, requested: Precision, choice: EngineChoice) -> None:
    """Refuse targets that have no kernels of a component's precision.

    Args:
        component: Component of the graph.
        requested: Precision that the user requested for it.
        choice: Choice of how its engine is built.

    Raises:
        InvalidRequest: A target is too old. The message names each.
    """
    precision = component.precision(requested)
    # A quantized graph also computes in the precision around its products.
    least = max(_FIRST_TARGET.get(each, 0) for each in (precision, component.loaded_in(precision)))
    lacking = [target for target in choice.targets if int(target.removeprefix("sm")) < least]
    if lacking:
        raise InvalidRequest(
            f"target must be sm{least} or newer for {precision.value} of {component.name}, got"
            f" {', '.join(lacking)}"
        )


def chosen_engine(library: Library, *, request: EngineRequest) -> EngineChoice:
    """Return how a library builds an engine that is placed here.

    Args:
        library: Library that builds it.
        request: Options from the user.

    Raises:
        InvalidRequest: The library cannot build the engine on this machine.
    """
    choice = choose_engine(library, request, placed=True)
    assert choice is not None  # Without its library, an engine that is placed is an error.
    return choice
