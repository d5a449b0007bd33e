"""Option `--config FILE.yaml`, which reads any option of a command from a file.

The option is eager, so it is handled before the others. The file's keys become the defaults of the command's
own options, which parse, convert and validate them as if they had been typed; values on the command line
take precedence. Keys are the flags' names, with dashes or underscores; a key that is no flag is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import typer
import yaml
from typer.models import OptionInfo


def config_option() -> OptionInfo:
    """Return the option for the command parameter ``config: Annotated[Path | None, ...] = None``."""
    option: OptionInfo = typer.Option(
        "--config",
        help="YAML file with values for these options; options on the command line take precedence.",
        metavar="FILE.yaml",
        is_eager=True,
        callback=_load_into_defaults,
    )
    return option


def read_options(path: Path, allowed: Mapping[str, bool]) -> dict[str, Any]:
    """Read a file of options.

    Args:
        path: YAML file that contains one mapping.
        allowed: Names of the options, with underscores; True for options that may be given several times.

    Returns:
        Values by option name. A single value of a repeatable option becomes a list. Keys without a value are
        left out.

    Raises:
        typer.BadParameter: The file cannot be read or is not a mapping, a key is unknown or occurs twice, or
            a value is a mapping.
    """
    values: dict[str, Any] = {}
    unknown = []
    for key, value in _read_mapping(path).items():
        name = str(key).replace("-", "_")
        if name not in allowed:
            unknown.append(_unknown(str(key), allowed))
        elif name in values:
            raise typer.BadParameter(
                f"{path}: {key} must be given once, got it with dashes and with underscores"
            )
        elif isinstance(value, Mapping):
            raise typer.BadParameter(f"{path}: {key} must be a value or a list, got a mapping")
        elif value is not None:
            values[name] = [value] if allowed[name] and not isinstance(value, list) else value
    if unknown:
        flags = ", ".join(sorted(name.replace("_", "-") for name in allowed))
        raise typer.BadParameter(f"{path}: {'; '.join(unknown)}; allowed are {flags}")
    return values


def _load_into_defaults(
    context: typer.Context, parameter: typer.CallbackParam, path: Path | None
) -> Path | None:
    """Make the values of the file the defaults of the command's options."""
    if path is None or context.resilient_parsing:
        return path
    named = {
        name: other
        for other in context.command.params
        if other.name is not None and other.name not in (parameter.name, "help")
        for name in (other.name, *(flag[2:].replace("-", "_") for flag in other.opts if flag[:2] == "--"))
    }
    values = read_options(
        path, {name: bool(getattr(other, "multiple", False)) for name, other in named.items()}
    )
    defaults: dict[str, Any] = {}
    for name, value in values.items():
        own = str(named[name].name)
        if own in defaults:
            raise typer.BadParameter(f"{path}: {name} must be given once, got it under two names")
        defaults[own] = value
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _read_mapping(path: Path) -> Mapping[Hashable, Any]:
    """Read the mapping of a YAML file; an empty file has no options."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_OnceLoader)
    except OSError as error:
        raise typer.BadParameter(f"{path} could not be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} must be YAML, got {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise typer.BadParameter(f"{path} must be a mapping of options, got a {type(content).__name__}")
    return content


class _OnceLoader(yaml.SafeLoader):
    """Safe YAML loader that raises an error for a repeated key instead of keeping the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} is given twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _unknown(key: str, allowed: Mapping[str, bool]) -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), allowed, n=1)
    hint = f", did you mean {close[0].replace('_', '-')}?" if close else ""
    return f"no option {key}{hint}"
