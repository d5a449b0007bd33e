"""Description of worlds for programs: what a page needs to begin one and to steer it.

The fields are those of the request that opens the world. The controls are the arrays of its turns whose
columns have names, such as the keys of a keyboard.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from slipway_client.served_model import ServedModel
from slipway_gateway.fields.description import property_of
from slipway_gateway.realtime.world_kinds import OUTPUT, can_move, formats_of, has_rebase
from slipway_serving.protocol.fields import Array, Field, Image, fields_of
from slipway_serving.protocol.requests import Request


def world_description(kind: type[Request], parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return what a page needs to begin a world and to steer it.

    Args:
        kind: Request class that opens the world.
        parameters: Parameters of the served model's configuration.
    """
    served = ServedModel(kind.model, parameters)
    assert kind.turn is not None
    return {
        "summary": (inspect.getdoc(kind) or kind.model).partition("\n")[0],
        "note": served.note,
        "formats": [each.name for each in formats_of(kind)],
        "can_save": can_move(kind),
        "continues": has_rebase(kind),
        "fields": [_field(field, served) for field in fields_of(kind) if field.name != OUTPUT],
        "controls": [
            {
                "name": field.name,
                "columns": list(field.rule.columns),
                "minimum": field.rule.low,
                "maximum": field.rule.high,
                "help": field.rule.help,
            }
            for field in fields_of(kind.turn)
            if isinstance(field.rule, Array) and field.rule.columns
        ],
    }


def _field(field: Field, served: ServedModel) -> dict[str, Any]:
    is_picture = isinstance(field.rule, Image)
    default = served.usual.get(field.name, field.default)
    found = {
        "name": field.name,
        "type": "picture" if is_picture else property_of(field)["type"],
        "required": not field.optional,
        "rule": field.rule.must,
        "help": field.rule.help,
        "default": default if isinstance(default, str | int | float | bool) else None,
    }
    if field.name in served.examples:
        found["example"] = served.examples[field.name]
    return found
