"""Family: a kind of checkpoint, what it becomes, and what clients may ask of its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway_export.spec.component import Component
from slipway_export.spec.layout import NamedFile, Part
from slipway_export.spec.stepped import Stepped
from slipway_export.spec.tensors import Axis
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from slipway_export.checkpoint.checkpoint import Checkpoint
    from slipway_serving.diffusion.videos.sizes import StateSize
    from slipway_serving.protocol.events import Event
    from slipway_serving.protocol.requests import Request

FileContent = Path | bytes | Callable[[], bytes]
"""File or folder to copy, content of a file in bytes, or function that makes the content."""


@dataclass(frozen=True)
class AuthoredModel:
    """A model of `model_repository/` that is placed beside the exported ones.

    Args:
        name: Name of its folder in the repository.
        files: Files that the export adds to it, by path within the model's folder.
        source: Name of its folder in `model_repository/`, if that differs; a path if the folder is elsewhere,
            as for a family in another distribution.
        request: Type of its requests, which gives the inputs of its `config.pbtxt`.
        events: Types of its answers, which give the outputs; by default those of the request.
        usual: Values of the request's fields that the exported axes are tuned for. The model's configuration
            includes them, so that a client that does not know the checkpoint can ask for what it can make.
        ranges: Smallest and largest values of the request's fields that the exported axes allow, for clients
            that check a request before they send it. For a picture it is the number of pictures, 0 or 1.
        words: Words that the checkpoint knows in text fields of the request, by field. A checkpoint that
            knows few words names them, so that a form can show them.
        examples: Examples of the request's fields that come with the checkpoint, for people who have none of
            their own: texts, and pictures as base64 text of their files.
        note: Sentences of the checkpoint's makers to those who use it; empty if there are none.
    """

    name: str
    files: Mapping[str, FileContent] = field(default_factory=dict)
    source: str | Path | None = None
    request: type[Request] | None = None
    events: tuple[type[Event], ...] = ()
    usual: Mapping[str, int | float] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """Plan of a checkpoint: its graphs and the authored models around them."""

    components: tuple[Component, ...]
    authored: tuple[AuthoredModel, ...]
    stepped: tuple[Stepped, ...] = ()


@dataclass(frozen=True)
class Preset:
    """A checkpoint that a family can write, with random weights or trained ones.

    Args:
        summary: Description for people, one line.
        configs: Configuration of each part, by file path within the checkpoint. A checkpoint whose files say
            the same is of this preset.
        axes: Ranges to export such a checkpoint with.
        write: Function that writes the checkpoint into a folder, from the configs and a seed; the seed of a
            trained checkpoint is 0.
        write_empty: Function that writes the checkpoint with weight files that have no content and take no
            space, for where configurations suffice. None if the checkpoint is small enough for `write`.
    """

    summary: str
    configs: Mapping[str, Mapping[str, Any]]
    axes: tuple[Axis, ...]
    write: Callable[[Path, int], None]
    write_empty: Callable[[Path], None] | None = None


@dataclass(frozen=True)
class GraphFile:
    """The one graph that upstream's own exporter makes, for an export into a file.

    Args:
        label: Label of the component that the file contains if the user names none.
        path: Path of the file if checkpoint files are given, and neither a file nor a repository.
        opset: ONNX operator set of that graph in a file, if its precision allows it.
    """

    label: str
    path: Path
    opset: int


@dataclass(frozen=True)
class Variant:
    """Another way to serve a family's checkpoints, chosen at the export (``--variant``, ``--mode``).

    It may require other files than the family's own plan, such as a mode whose weights are in an additional
    file.

    Args:
        summary: Description for people, one line.
        plan: Function as :attr:`Family.plan`.
        layout: Layout as :attr:`Family.layout`; the family's when None.
        files: Files as :attr:`Family.files`; the family's when None.
        graph_file: Graph file as :attr:`Family.graph_file`; the family's when None.
        supplied: Files as :attr:`Family.supplied`; the family's when None.
    """

    summary: str
    plan: Callable[[Checkpoint, Sequence[Axis]], Plan]
    layout: tuple[str | Part, ...] | None = None
    files: Mapping[str, NamedFile] | None = None
    graph_file: GraphFile | None = None
    supplied: Mapping[str, Callable[[], bytes]] | None = None


@dataclass(frozen=True)
class Family:
    """One family of checkpoints and how it is served.

    Args:
        name: Name in commands and model names.
        upstream: Public checkpoint that the family represents.
        summary: Description for people, one line.
        served: Names of the models that clients call.
        layout: Required content of a checkpoint: files by their paths, and the folders of its parts.
        axes: Ranges for a checkpoint that is of no preset.
        presets: Presets, by name.
        plan: Function that reads a checkpoint's configuration and describes what it becomes.
        variants: Alternative plans, by name, each possibly for other files.
        requests: Types of the clients' requests; `slipway generate` has a command for each.
        trained: Family of the checkpoints that users train for this one and export by name; None if there is
            no such training.
        files: Files of the layout that have an option of their own, by role (``conf``, ``ckpt``). Such a
            checkpoint may also be given as files of any names and places, by all the options without a
            default.
        sizes: Names of axes, by the options that upstream has for the sizes of a trace (``batch-size``).
        graph_file: Graph that an export into a file makes if the user names no component; None if one must be
            named.
        former_names: Names of components in this project, by the name that another exporter uses
            (``--model-type``).
        state_size: Function that returns the size of a stopped video's state at the usual size of a video,
            from the version folder of the family's pipeline; None if the family has no such videos.
        takes_schedule: True if the plan gives the served model the schedule that the user chose for it
            (``--steps-list``, ``--flow-shift``).
        supplied: Functions that return the content of configuration files which the public checkpoint lacks,
            by path in the layout. They are used for a checkpoint with none of these files.
    """

    name: str
    upstream: str
    summary: str
    served: tuple[str, ...]
    layout: tuple[str | Part, ...]
    axes: tuple[Axis, ...]
    presets: Mapping[str, Preset]
    plan: Callable[[Checkpoint, Sequence[Axis]], Plan]
    variants: Mapping[str, Variant] = field(default_factory=dict)
    requests: tuple[type[Request], ...] = ()
    trained: str | None = None
    files: Mapping[str, NamedFile] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    graph_file: GraphFile | None = None
    former_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    state_size: Callable[[Path], StateSize] | None = None
    takes_schedule: bool = False
    supplied: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)

    def variant(self, name: str | None) -> Family:
        """Return the family with the plan and the files of one of its variants.

        Args:
            name: Name of the variant; None for the family itself.

        Raises:
            InvalidRequest: The family has no variant of that name.
        """
        if name is None:
            return self
        if name not in self.variants:
            known = ", ".join(self.variants) or f"left out for {self.name}, which has none"
            raise InvalidRequest(f"variant must be {known}, got {name!r}")
        chosen = self.variants[name]
        return replace(
            self,
            plan=chosen.plan,
            layout=self.layout if chosen.layout is None else chosen.layout,
            files=self.files if chosen.files is None else chosen.files,
            graph_file=self.graph_file if chosen.graph_file is None else chosen.graph_file,
            supplied=self.supplied if chosen.supplied is None else chosen.supplied,
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of a checkpoint that may lie in places of their own."""
        return tuple(entry for entry in self.layout if isinstance(entry, Part))

    @property
    def parts_alone(self) -> tuple[str, ...]:
        """Names of the components whose part may be given by itself."""
        return tuple(name for part in self.parts for name in part.components)

    def component_named(self, name: str) -> str:
        """Return this project's name of a component, given the name that another exporter uses.

        Raises:
            InvalidRequest: The name stands for several components here.
        """
        here = self.former_names.get(name, (name,))
        if len(here) > 1:
            raise InvalidRequest(
                f"export: component must be {' or '.join(here)} for {self.name}, got {name}; try"
                f" --component {here[0]}"
            )
        return here[0]
