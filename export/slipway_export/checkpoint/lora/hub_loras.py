"""LoRA files of hub repositories: downloaded for an export, described by their headers for a plan."""

from __future__ import annotations

import posixpath
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from slipway_export.checkpoint.hub import is_transport_error
from slipway_export.checkpoint.stored_weights import DTYPES, write_empty
from slipway_serving.protocol.errors import InvalidRequest

CONFIG_FILE = "adapter_config.json"
"""Configuration of PEFT beside a LoRA's weights."""
PEFT_FILE = "adapter_model.safetensors"
"""Name of the weights that PEFT writes."""


def lora_in_hub(
    source: str, hub_id: str, file: str | None, choose: Callable[[Sequence[str]], str], headers: Path | None
) -> tuple[Path, str | None]:
    """Return the location of a LoRA's file of a hub, and the commit of its snapshot.

    Args:
        source: LoRA as the user named it, for messages.
        hub_id: Id of the repository.
        file: Path of the file in it; None if the repository is to have one.
        choose: Function that returns the LoRA's file among the repository's.
        headers: Folder for files with the headers and without the content; None to download the LoRA.

    Raises:
        InvalidRequest: The hub cannot be reached or has no such file, or the file is no complete safetensors.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    try:
        name = file or choose(HfApi().list_repo_files(hub_id))
        config = _config(hub_id, name)
        if headers is None or isinstance(try_to_load_from_cache(hub_id, name), str):
            location = _download(hub_id, name)
            parts = location.parts
            return location, parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-1] else None
        return _described(hub_id, name, config, headers), None
    except (SafetensorsParsingError, NotASafetensorsRepoError) as error:
        raise InvalidRequest(f"lora {source} must be a complete safetensors file, got {error}") from None
    except Exception as error:
        if not is_transport_error(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidRequest(
            f"lora must be an existing file, or a reachable hub id, got {source!r} ({reason})"
        ) from None


def _download(hub_id: str, name: str) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(hub_id, name))


def _config(hub_id: str, name: str) -> Path | None:
    """Download PEFT's configuration beside a LoRA, which has its alpha; return None if there is none."""
    from huggingface_hub.errors import EntryNotFoundError

    if posixpath.basename(name) != PEFT_FILE:
        return None
    try:
        return _download(hub_id, posixpath.join(posixpath.dirname(name), CONFIG_FILE))
    except EntryNotFoundError:  # Also if it is not in the cache and the hub must not be asked.
        return None


def _described(hub_id: str, name: str, config: Path | None, headers: Path) -> Path:
    """Ask for a file's header alone, and write a file with this header whose content is a hole."""
    from huggingface_hub import HfApi

    found = HfApi().parse_safetensors_file_metadata(hub_id, name)
    if others := sorted({each.dtype for each in found.tensors.values()} - DTYPES.keys()):
        raise InvalidRequest(
            f"lora {hub_id}/{name} must have tensors of known types, got {', '.join(others)}"
        )
    folder = Path(tempfile.mkdtemp(dir=headers))
    path = folder / posixpath.basename(name)
    tensors = {key: (DTYPES[each.dtype], tuple(each.shape)) for key, each in found.tensors.items()}
    write_empty(path, tensors, {key: str(value) for key, value in (found.metadata or {}).items()})
    if config is not None:
        shutil.copyfile(config, folder / CONFIG_FILE)
    return path
