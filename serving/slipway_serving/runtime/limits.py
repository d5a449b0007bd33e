"""Operator limits on requests: one YAML file sets lower limits than the models themselves have.

`slipway serve --limits FILE` or the environment variable `SLIPWAY_LIMITS` names the file, which lists limits
by model::

    wan_t2v: {steps: 20, prompt: 2000, "frames * height * width": 8_000_000}
    matrix_game_universal: {max_sessions: 2, image: 4_000_000}

A limit applies to one input or to a product of inputs: the largest value of a number, the largest size in
bytes of a text or a file, the largest number of elements of an array. For numeric parameters of a model, such
as `max_sessions`, the limit replaces the parameter. Each model reads its own limits when it loads
(:class:`~slipway_serving.runtime.program.Settings`); the adapter checks requests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from slipway_serving.protocol.errors import InvalidRequest, raise_all

LIMITS_VARIABLE = "SLIPWAY_LIMITS"
"""Environment variable that names the file; without it there are no limits."""
_PRODUCT = re.compile(r"[a-z_][a-z0-9_]*(\s*\*\s*[a-z_][a-z0-9_]*)*")


@dataclass(frozen=True)
class Limits:
    """Limits of one model.

    Attributes:
        maximums: Largest value by input name, or by the names of a product joined with " * ".
        numbers: Names of inputs that hold one number, which has a default if the request omits it.
    """

    maximums: Mapping[str, int]
    numbers: frozenset[str] = frozenset()

    def check(self, model: str, tensors: Mapping[str, NDArray[Any]], *, opening: bool) -> None:
        """Check the inputs of a request against the limits.

        Args:
            model: Name of the model, for the message.
            tensors: Arrays by input name.
            opening: True if defaults replace omitted inputs; False in a later turn of a session.

        Raises:
            InvalidRequest: An input is above its limit, or a number is omitted whose default may be above
                it. The message names all of them.
        """
        problems = []
        for name, maximum in self.maximums.items():
            inputs = name.split(" * ")
            missing = [each for each in inputs if each not in tensors]
            got = math.prod(_measure(tensors[each]) for each in inputs if each in tensors)
            if opening and self.numbers.intersection(missing):
                problems.append(
                    f"{', '.join(missing)} must be given on this server, where {name} may be at most"
                    f" {maximum}, got nothing"
                )
            elif not missing and not got <= maximum:
                problems.append(
                    f"{name} must be at most {maximum} on this server, got {got:g}; try a smaller request"
                )
        raise_all(model, problems)


NO_LIMITS = Limits({})


def read_limits(path: Path) -> dict[str, dict[str, int]]:
    """Read a file of limits: by model, then by input, product of inputs, or parameter.

    Raises:
        InvalidRequest: The file cannot be read, or does not map model names to limits that are whole numbers
            of 0 or more by name.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InvalidRequest(f"limits: {path} must be a YAML file of models, got {reason}") from None
    if not isinstance(content, dict) or not all(isinstance(value, dict) for value in content.values()):
        raise InvalidRequest(
            f'limits: {path} must map model names to limits, got something else; try "wan_t2v: {{steps: 20}}"'
        )
    problems = [
        f"{model}: {name} must be inputs joined by *, with a whole number of 0 or more, got {maximum!r}"
        for model, limits in content.items()
        for name, maximum in limits.items()
        if not isinstance(name, str)
        or not _PRODUCT.fullmatch(name)
        or type(maximum) is not int
        or maximum < 0
    ]
    raise_all(f"limits: {path}", problems)
    return {
        str(model): {" * ".join(re.split(r"\s*\*\s*", name)): maximum for name, maximum in limits.items()}
        for model, limits in content.items()
    }


def model_limits(model: str, path: Path, config: Mapping[str, Any]) -> tuple[Limits, dict[str, str]]:
    """Return a model's limits, and the new values of the parameters that the file replaces.

    Args:
        model: Name of the served model.
        path: Path of the limits file.
        config: Configuration of the model in Triton's JSON form.

    Raises:
        InvalidRequest: The file is not valid for :func:`read_limits`, or a name is neither an input nor a
            parameter of the model.
    """
    own = read_limits(path).get(model, {})
    parameters = {name for name, value in config.get("parameters", {}).items() if _is_number(value)}
    inputs = {entry["name"] for entry in config.get("input", [])}
    unknown = [
        f"{name} must be one of {', '.join(sorted(inputs | parameters))}"
        for name in own
        if name not in parameters and not set(name.split(" * ")) <= inputs
    ]
    raise_all(f"limits: {path}: {model}", unknown)
    replaced = {name: str(maximum) for name, maximum in own.items() if name in parameters}
    numbers = {
        entry["name"]
        for entry in config.get("input", [])
        if entry["data_type"] != "TYPE_STRING" and all(int(size) == 1 for size in entry["dims"])
    }
    maximums = {name: maximum for name, maximum in own.items() if name not in parameters}
    return Limits(maximums, frozenset(numbers)), replaced


def _is_number(parameter: Mapping[str, Any]) -> bool:
    return str(parameter.get("string_value", "")).isdigit()


def _measure(tensor: NDArray[Any]) -> float:
    """Measure a tensor for a limit: bytes of texts, the value of one number, else the number of elements."""
    if tensor.dtype == np.object_:
        return float(sum(len(element) for element in tensor.flat))
    if tensor.size == 1:
        return float(tensor.reshape(-1)[0])
    return float(tensor.size)
