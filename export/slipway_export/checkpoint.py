"""Reads public checkpoints and checks them before any weight is used.

A checkpoint is a folder in the layout of diffusers or transformers (`config.json` and safetensors per
part, sharded or not). It comes from a preset, a local folder, or a hub id. Every file that a part
needs, every key and every shape is checked against the network's own before loading, because the
libraries' loaders fill missing keys with random numbers and only warn.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slipway_export.named_files import linked
from slipway_export.spec import Axis, Family, Precision
from slipway_serving.errors import InvalidRequest

if TYPE_CHECKING:
    import torch

Module = TypeVar("Module", bound="torch.nn.Module")

_WEIGHT_STEMS = ("diffusion_pytorch_model.safetensors", "model.safetensors")
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_SHOWN_KEYS = 5


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder.

    Args:
        path: the folder.
        source: what the user named: a preset, the folder, or a hub id.
    """

    path: Path
    source: str

    def config(self, file: str) -> dict[str, Any]:
        """Read a JSON file of the checkpoint.

        Raises:
            InvalidRequest: it is missing or not a JSON object.
        """
        path = self.path / file
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidRequest(f"checkpoint {self.source}: file {file} is missing") from None
        except ValueError as error:
            raise InvalidRequest(f"checkpoint {self.source}: {file} must be JSON, got {error}") from None
        if not isinstance(content, dict):
            raise InvalidRequest(
                f"checkpoint {self.source}: {file} must be a JSON object, got {type(content).__name__}"
            )
        return content

    def has(self, file: str) -> bool:
        """Whether the checkpoint has a file or folder of that path."""
        return (self.path / file).exists()

    def check_layout(self, family: Family) -> None:
        """Check that every path of the family's layout is there.

        Raises:
            InvalidRequest: names all that are missing.
        """
        if missing := [path for path in family.layout if not self.has(path)]:
            raise InvalidRequest(
                f"checkpoint {self.source}: {', '.join(missing)} must exist for {family.name}"
                f" (layout of {family.upstream})"
            )

    def load(
        self,
        part: str,
        network: type[Module],
        precision: Precision = Precision.FP32,
        build: Callable[[], Module] | None = None,
        **options: Any,
    ) -> Module:
        """Load a part's network with its checked weights, in eval mode and without gradients.

        Args:
            part: folder of the part, e.g. ``transformer_2``.
            network: class with ``from_pretrained`` of diffusers or transformers.
            precision: of the weights; modules that the network keeps in float32 stay so.
            build: makes the network without weights; its keys and shapes are what is checked.
            **options: passed to ``from_pretrained``.

        Raises:
            InvalidRequest: a file is missing or cut off, or keys or shapes differ.
        """
        import torch

        with torch.device("meta"):
            skeleton = (
                build() if build else network.from_config(self.config(f"{part}/config.json"))  # type: ignore[attr-defined]
            )
        self.check_weights(part, skeleton)
        dtype = {
            Precision.FP32: torch.float32,
            Precision.FP16: torch.float16,
            Precision.BF16: torch.bfloat16,
        }[precision]
        module: Module = network.from_pretrained(  # type: ignore[attr-defined]
            self.path / part, torch_dtype=dtype, local_files_only=True, **options
        )
        return module.eval().requires_grad_(False)

    def check_weights(self, part: str, skeleton: torch.nn.Module) -> None:
        """Compare the keys and shapes of a part's files with those of its network.

        Raises:
            InvalidRequest: names the part and the first keys that are missing, unknown or of another
                shape.
        """
        found = self.weight_shapes(part)
        wanted = {key: tuple(tensor.shape) for key, tensor in skeleton.state_dict().items()}
        # A tied weight may be stored under either of its names.
        tied = getattr(skeleton, "_tied_weights_keys", None) or {}
        twins = dict(tied) if isinstance(tied, Mapping) else {}
        optional = {key for pair in twins.items() for key in pair if any(name in found for name in pair)}
        problems = []
        if missing := sorted(wanted.keys() - found.keys() - optional):
            problems.append(f"missing keys {_shown(missing)}")
        if unknown := sorted(found.keys() - wanted.keys()):
            problems.append(f"unknown keys {_shown(unknown)}")
        problems += [
            f"{key} must have shape {list(wanted[key])}, got {list(found[key])}"
            for key in sorted(wanted.keys() & found.keys())
            if wanted[key] != found[key]
        ][:_SHOWN_KEYS]
        if problems:
            raise InvalidRequest(
                f"checkpoint {self.source}: {part} must have the keys of {type(skeleton).__name__}, got "
                + "; ".join(problems)
            )

    def weight_shapes(self, part: str) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of a part, read from the headers of its files.

        Raises:
            InvalidRequest: a file is missing, cut off, or not safetensors.
        """
        from safetensors import SafetensorError, safe_open

        shapes: dict[str, tuple[int, ...]] = {}
        for file in self._weight_files(part):
            try:
                with safe_open(self.path / file, framework="pt") as tensors:
                    shapes |= {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118
            except FileNotFoundError:
                raise InvalidRequest(f"checkpoint {self.source}: file {file} is missing") from None
            except (SafetensorError, OSError) as error:
                raise InvalidRequest(
                    f"checkpoint {self.source}: {file} must be a whole safetensors file, got {error}"
                ) from None
        return shapes

    def _weight_files(self, part: str) -> list[str]:
        for stem in _WEIGHT_STEMS:
            if self.has(f"{part}/{stem}.index.json"):
                index = self.config(f"{part}/{stem}.index.json").get("weight_map", {})
                return [f"{part}/{shard}" for shard in sorted(set(index.values()))]
            if self.has(f"{part}/{stem}"):
                return [f"{part}/{stem}"]
        raise InvalidRequest(
            f"checkpoint {self.source}: {part} must have one of"
            f" {', '.join(_WEIGHT_STEMS)} or its .index.json, got neither"
        )


def _shown(keys: list[str]) -> str:
    rest = len(keys) - _SHOWN_KEYS
    return ", ".join(keys[:_SHOWN_KEYS]) + (f" and {rest} more" if rest > 0 else "")


@contextmanager
def open_checkpoint(
    family: Family, source: str, files: Mapping[str, Path] | None = None
) -> Iterator[Checkpoint]:
    """Find a checkpoint and check its layout.

    Args:
        family: whose layout it must have.
        source: a preset's name (written into a temporary folder), a folder, or a hub id.
        files: by role of the family's, instead of a source.

    Raises:
        InvalidRequest: the source is none of these, a file is missing, or the layout is not complete.
    """
    if files:
        with linked(family, files) as (folder, name):
            checkpoint = Checkpoint(folder, name)
            checkpoint.check_layout(family)
            yield checkpoint
        return
    if preset := family.presets.get(source):
        with tempfile.TemporaryDirectory(prefix="slipway-checkpoint-") as folder:
            preset.write(Path(folder), 0)
            checkpoint = Checkpoint(Path(folder), source)
            checkpoint.check_layout(family)
            yield checkpoint
        return
    if Path(source).is_dir():
        checkpoint = Checkpoint(Path(source).resolve(), source)
    elif _HUB_ID.match(source) and not Path(source).exists():
        checkpoint = Checkpoint(_download(source), source)
    else:
        raise InvalidRequest(
            f"checkpoint must be a preset ({', '.join(family.presets)}), a folder, or a hub id,"
            f" got {source!r}"
        )
    checkpoint.check_layout(family)
    yield checkpoint


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidRequest(
            "checkpoint must be a preset, an existing folder, or a reachable hub id,"
            f" got {hub_id!r} ({reason})"
        ) from None


def axes_of(family: Family, checkpoint: Checkpoint, chosen: Mapping[str, Axis]) -> tuple[Axis, ...]:
    """Return the ranges to export a checkpoint with.

    Those of the preset whose configuration the checkpoint has, else the family's, each replaced by
    the one that the user chose.

    Raises:
        InvalidRequest: the user chose an axis that the family does not have.
    """
    axes = family.axes
    for preset in family.presets.values():
        if all(_agrees(checkpoint, file, config) for file, config in preset.configs.items()):
            axes = preset.axes
    names = {axis.name for axis in axes}
    if unknown := sorted(chosen.keys() - names):
        raise InvalidRequest(f"axis must be one of {', '.join(sorted(names))}, got {', '.join(unknown)}")
    return tuple(chosen.get(axis.name, axis) for axis in axes)


def _agrees(checkpoint: Checkpoint, file: str, config: Mapping[str, Any]) -> bool:
    if not checkpoint.has(file):
        return False
    stored = checkpoint.config(file)
    # Through JSON, because a tuple of the preset is a list in the file.
    return all(stored.get(key) == json.loads(json.dumps(value)) for key, value in config.items())
