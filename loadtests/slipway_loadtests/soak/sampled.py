"""Traffic for the models of every installed family: sample requests, and fields that break their rule.

`workload.py` has the kinds of traffic with contents of real users; :func:`all_kinds` adds those of all other
models, from the rules of their requests' fields (:mod:`slipway_loadtests.samples`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from slipway_client.served_model import ServedModel
from slipway_export.families import families, family_named
from slipway_loadtests.samples import sample, wrong_values
from slipway_loadtests.soak.workload import TURNS, Ask, Kind, kinds
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.fields import fields_of
from slipway_serving.protocol.requests import Request


def all_kinds(limit_s: float, fields: Mapping[str, Mapping[str, Any]]) -> tuple[Kind, ...]:
    """Return the traffic of every family.

    Args:
        limit_s: Time limit of each video or other long request, in seconds.
        fields: Values of fields that sample requests have, by model.
    """
    known = kinds(limit_s)
    models = {kind.model for kind in known}
    requests = [each for family in families() for each in family.requests if each.model not in models]
    return (*known, *(sampled_kind(each, limit_s, fields.get(each.model, {})) for each in requests))


def of_families(found: Sequence[Kind], names: Sequence[str]) -> tuple[Kind, ...]:
    """Return the kinds whose model is of one of some families; all kinds without a name.

    Raises:
        InvalidRequest: There is no such family, or clients send no requests to it.
    """
    if not names:
        return tuple(found)
    models = {name: set(family_named(name).served) for name in names}
    for name, served in models.items():
        if not any(kind.model in served for kind in found):
            raise InvalidRequest(
                f"soak: family must have requests that clients send, got {name}, whose description names none"
            )
    return tuple(kind for kind in found if any(kind.model in served for served in models.values()))


def sampled_kind(request: type[Request], limit_s: float, fields: Mapping[str, Any]) -> Kind:
    """Return the traffic of a model whose requests are drawn from the rules of their fields.

    Args:
        request: Class of the request.
        limit_s: Time limit of the request, in seconds.
        fields: Values of its fields that are not drawn.

    Raises:
        InvalidRequest: The requests have no such field.
    """
    known = {field.name for field in fields_of(request)}
    if unknown := sorted(set(fields) - known):
        raise InvalidRequest(f"soak: fields of {request.model} must be of {sorted(known)}, got {unknown}")
    if "timeout_s" in known:
        fields = {"timeout_s": limit_s, **fields}
    return _fitted(request, fields, ServedModel(request.model))


def _fitted(request: type[Request], fields: Mapping[str, Any], served: ServedModel) -> Kind:
    turn = request.turn
    wrong = {**(wrong_values(turn) if turn is not None else {}), **wrong_values(request)}
    bad = {name: partial(_replaced, value) for name, value in wrong.items()}
    return Kind(
        request.model, 1, partial(_ask, request, fields, served), bad, partial(_fitted, request, fields)
    )


def _ask(request: type[Request], fields: Mapping[str, Any], served: ServedModel, seed: int) -> Ask:
    random = np.random.default_rng(seed)
    opening = sample(request, served, random, fields)
    if request.turn is None:
        return Ask(opening)
    return Ask(opening, tuple(sample(request.turn, served, random) for _ in range(TURNS)))


def _replaced(value: Any, _: Any) -> Any:
    """Return the value that takes the place of a field's own."""
    return value
