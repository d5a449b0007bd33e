"""The capacity benchmark's load on a real Triton, for a moment. Nothing here asserts a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway_benchmarks.capacity.benchmark import CapacityOptions, Checked, check_model
from slipway_benchmarks.capacity.measurements import compared_subjects, measure_service, merged_subjects
from slipway_serving.protocol.errors import SlipwayError
from slipway_serving.triton.server import Server

pytestmark = pytest.mark.long

OPTIONS = CapacityOptions(rounds=2, requests=20, load=0.8)
VIDEO = next(subject for subject in compared_subjects() if subject.model == "wan_t2v")


@pytest.fixture(scope="module")
def checked(repository: Path) -> Checked:
    said: list[str] = []
    found = check_model(repository, [VIDEO], OPTIONS, said.append)
    assert list(found) == ["wan_t2v"]
    assert said == ["round 1 of 2", "round 2 of 2"]
    return found["wan_t2v"]


def test_tritons_trace_has_every_request_of_the_load(checked: Checked) -> None:
    assert len(checked.rounds) == 2
    for found in checked.rounds:
        assert found.service_s > 0
        assert len(found.rates) == 2
        assert found.lag_s >= 0
        assert found.measured.mean_s > 0


def test_model_predicts_a_delay_for_the_same_moments(checked: Checked) -> None:
    for found in checked.rounds:
        assert found.predicted.mean_s >= 0
        assert found.predicted.p95_s >= 0
    assert len(checked.mean_ratio.values) == len(checked.p95_ratio.values) == 2


def test_service_has_times_alone_and_a_rate_for_as_many_as_were_sent_together(server: Server) -> None:
    service = measure_service(server, VIDEO, requests=4)
    assert len(service.alone_s) == 4
    assert min(service.alone_s) > 0
    assert len(service.rates) == VIDEO.together[-1]
    assert all(0 < rate <= 1 for rate in service.rates)
    assert service.per_s >= 1 / service.mean_s


def test_load_stops_with_the_servers_error_when_a_model_is_missing(server: Server) -> None:
    # The session's server has no signal families.
    with pytest.raises(SlipwayError, match="airimu_stream"):
        measure_service(server, merged_subjects()[0], requests=4)
