"""How the load test uses the models of every family that is installed.

`visits.py` has uses with the contents and the pace of real users. Any other model of a registered family is
used with sample requests (:mod:`slipway_loadtests.samples`): one visit is one request, or one session whose
turns follow one another.
"""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import Any

import numpy as np

from slipway_client.served_model import ServedModel
from slipway_export.families import families, family_named
from slipway_export.spec import Family
from slipway_loadtests.load.outcomes import ANSWERED, now_s
from slipway_loadtests.load.plan import Plan
from slipway_loadtests.load.visits import USES, Use, Visitor, follow, stated_values
from slipway_loadtests.samples import sample, sampled_values
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.protocol.events import FramesPart, VideoPart
from slipway_serving.protocol.fields import Image, fields_of
from slipway_serving.protocol.images import to_bytes
from slipway_serving.protocol.requests import Request


def all_uses() -> tuple[Use, ...]:
    """Return the uses of the models of all families."""
    return tuple(use for family in families() for use in _uses_of(family))


def uses_of(name: str) -> tuple[Use, ...]:
    """Return the uses of a family's models.

    Raises:
        InvalidRequest: There is no such family, or clients send no requests to it.
    """
    family = family_named(name)
    if found := _uses_of(family):
        return found
    raise InvalidRequest(
        f"family must have requests that clients send, got {name}, whose description names none; try a"
        f" family of {', '.join(each.name for each in families() if _uses_of(each))}"
    )


def request_visit(visitor: Visitor, due_s: float, request: type[Request]) -> None:
    """Send one sample request."""
    follow(visitor, due_s, _sampled(visitor, request))


def session_visit(visitor: Visitor, due_s: float, request: type[Request]) -> None:
    """Open a session with a sample request, and send sample turns for the session's length.

    A turn is due when the time that the one before covers is over, if the request class states that time.

    Raises:
        Unrecoverable: A turn is not answered.
    """
    opening, begun_s = _sampled(visitor, request), now_s()
    assert request.turn is not None
    with visitor.client.session(opening) as session:
        while True:
            turn = sample(request.turn, visitor.served, visitor.random)
            with visitor.watch(request.model, due_s) as watch:
                events = list(session.step(turn, timeout_s=visitor.plan.timeout_s))
                if not events:
                    raise Unrecoverable(f"{request.model}: a turn must be answered, got nothing")
                for event in events:
                    watch.see(event)
            due_s = max(due_s + request.turn_s, now_s()) if visitor.plan.paced and request.turn_s else now_s()
            ended = watch.outcome is None or watch.outcome.ended != ANSWERED
            if ended or due_s >= min(begun_s + visitor.plan.session_s, visitor.until_s):
                return
            time.sleep(max(due_s - now_s(), 0.0))


def video_fields(
    plan: Plan, random: np.random.Generator, request: type[Request]
) -> tuple[type[Request], dict[str, Any]]:
    """Return the request class of a video, and sample values of its fields, for a user of a gateway."""
    stated = stated_values(plan, request, {})
    values = sampled_values(sample(request, ServedModel(request.model), random, stated))
    pictures = {each.name for each in fields_of(request) if isinstance(each.rule, Image)}
    return request, {name: to_bytes(each) if name in pictures else each for name, each in values.items()}


def _sampled(visitor: Visitor, request: type[Request]) -> Request:
    return sample(request, visitor.served, visitor.random, stated_values(visitor.plan, request, {}))


def _uses_of(family: Family) -> tuple[Use, ...]:
    own = [use for use in USES if use.family == family.name]
    known = {use.model for use in own}
    sampled = [_use(family.name, request) for request in family.requests if request.model not in known]
    return (*own, *sampled)


def _use(family: str, request: type[Request]) -> Use:
    user = "".join(word.capitalize() for word in request.model.split("_"))
    if request.turn is not None:
        visit = partial(session_visit, request=request)
        without_pace = request.turn_s is None
        return Use(request.model, family, f"{user}Sessions", visit, request.turn_s, without_pace=without_pace)
    use = Use(request.model, family, f"{user}Requests", partial(request_visit, request=request))
    if not {FramesPart, VideoPart} & set(request.events):
        return use
    return dataclasses.replace(use, video=partial(video_fields, request=request))
