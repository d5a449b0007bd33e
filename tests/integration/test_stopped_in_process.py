"""Videos stopped at random steps, any number of times: equal to the bit to those that were not stopped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from framepack_fixtures import small_repository
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stopped_videos import EULER, Answer, LocalPipeline, cached_export, equal, in_pieces, with_scheduler

from slipway_client import ImageToVideoRequest, TextToVideoRequest
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest

pytestmark = pytest.mark.long

WAN = TextToVideoRequest(
    "a lake", negative_prompt="blur", frames=5, height=32, width=32, steps=6, guidance_scale_2=3.0,
    output="frames",
)  # fmt: skip
PICTURE = np.random.default_rng(0).integers(0, 255, (32, 48, 3), dtype=np.uint8)
FRAMEPACK = ImageToVideoRequest(
    image=PICTURE, prompt="it moves", seconds=2.4, steps=3, height=32, width=32, output="frames"
)
EXAMPLES = 60
LONG_EXAMPLES = 1000


class Pipelines:
    """Pipelines in this process, each opened once, and the undisturbed answer to each request."""

    def __init__(self, repositories: dict[str, Path]) -> None:
        self._repositories = repositories
        self._opened: dict[str, LocalPipeline] = {}
        self.whole = functools.cache(self._whole)

    def run(self, name: str, request: DenoisingRequest) -> Answer:
        if name not in self._opened:
            self._opened[name] = LocalPipeline(self._repositories[name], type(request))
        return self._opened[name].run(request)

    def _whole(self, name: str, request_of: Callable[..., DenoisingRequest], changes: Any) -> Answer:
        return self.run(name, request_of(**dict(changes)))

    def close(self) -> None:
        for each in self._opened.values():
            each.close()


@pytest.fixture(scope="module")
def pipelines(
    repository: Path, checkpoint: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipelines]:
    folder = tmp_path_factory.mktemp("stopped")
    opened = Pipelines(
        {
            "unipc": repository,
            "euler": with_scheduler(repository, folder / "euler", EULER),
            "cached": cached_export(shared, checkpoint),
            "framepack": small_repository(shared)[0],
        }
    )
    yield opened
    opened.close()


def wan(**changes: Any) -> DenoisingRequest:
    return replace(WAN, **changes)


def framepack(**changes: Any) -> DenoisingRequest:
    return replace(FRAMEPACK, **changes)


def stops_within(steps: int) -> st.SearchStrategy[list[int]]:
    return st.sets(st.integers(1, steps)).map(sorted)


INTERVALS = st.sampled_from([(0.0, 1.0), (0.0, 0.5), (0.4, 0.9)])
WAN_CASES = st.tuples(
    st.sampled_from(["unipc", "euler", "cached"]),
    st.integers(0, 3),
    INTERVALS,
    stops_within(WAN.steps),
)
FRAMEPACK_CASES = st.tuples(st.sampled_from(["inverted", "forward"]), stops_within(6))


def check_wan(pipelines: Pipelines, case: tuple[str, int, tuple[float, float], list[int]]) -> None:
    name, seed, (start, stop), stops = case
    # The threshold lies between the changes that the tiny denoisers show, so both hits and misses occur.
    threshold = {"cache_threshold": 0.3} if name == "cached" else {}
    changes = {"seed": seed, "guidance_start": start, "guidance_stop": stop, **threshold}
    whole = pipelines.whole(name, wan, tuple(changes.items()))
    pieces = in_pieces(functools.partial(pipelines.run, name), wan(**changes), stops)
    assert equal(pieces, whole)


def check_framepack(pipelines: Pipelines, case: tuple[str, list[int]]) -> None:
    order, stops = case
    whole = pipelines.whole("framepack", framepack, (("order", order),))
    pieces = in_pieces(functools.partial(pipelines.run, "framepack"), framepack(order=order), stops)
    assert equal(pieces, whole)


FREELY = settings(
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@FREELY
@given(case=WAN_CASES)
def test_wan_is_equal_when_it_is_stopped_anywhere(pipelines: Pipelines, case: Any) -> None:
    check_wan(pipelines, case)


@settings(FREELY, max_examples=EXAMPLES // 4)
@given(case=FRAMEPACK_CASES)
def test_framepack_is_equal_when_it_is_stopped_anywhere(pipelines: Pipelines, case: Any) -> None:
    check_framepack(pipelines, case)


@settings(FREELY, max_examples=LONG_EXAMPLES)
@given(case=WAN_CASES)
def test_wan_is_equal_in_a_thousand_examples(pipelines: Pipelines, case: Any) -> None:
    check_wan(pipelines, case)


def test_cache_both_hits_and_misses_in_these_examples(pipelines: Pipelines) -> None:
    rate = pipelines.run("cached", wan(cache_threshold=0.3)).cache_hit_rate
    assert rate is not None
    assert 0 < rate < 1
