"""Names that stand for several replicas, and places on them, without a server: nothing is sent here."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest

from slipway_client import AsyncClient
from slipway_gateway.replicas.addresses import given_addresses, metrics_url, resolve
from slipway_gateway.replicas.metrics import MetricsPage, parse_metrics
from slipway_gateway.replicas.replica import Replica, ReplicaState
from slipway_gateway.replicas.replicas import Replicas
from slipway_serving.protocol.errors import InvalidRequest, NotReady, Overloaded


def replica(url: str, **parameters: str) -> Replica:
    made = Replica(url, AsyncClient(url), state=ReplicaState.READY, models=frozenset({"video", "world"}))
    made.parameters = {"video": parameters, "world": parameters}
    return made


def fleet(*replicas: Replica, concurrency: int | None = 4) -> Replicas:
    made = Replicas([each.url for each in replicas], concurrency=concurrency)
    made._replicas = {each.url: each for each in replicas}
    return made


def test_addresses_are_parsed_and_a_name_becomes_addresses() -> None:
    name, plain, tls, six = given_addresses(
        ["grpc://pods:8001", "10.0.0.1:8001", "grpcs://pods:1", "[::1]:2"]
    )
    assert (name.is_name, plain.is_name, tls.is_name, six.is_name) == (True, False, False, False)
    assert name.at("10.0.0.2") == "grpc://10.0.0.2:8001" and name.at("fe80::1") == "grpc://[fe80::1]:8001"
    assert metrics_url("grpc://10.0.0.2:8001", 8002) == "http://10.0.0.2:8002/metrics"
    assert metrics_url("[::1]:2", 8002) == "http://[::1]:8002/metrics" and metrics_url("x:1", 0) is None
    with pytest.raises(InvalidRequest, match="concurrency must be 1 or more, got 0"):
        Replicas(["x:1"], concurrency=0)


async def test_replicas_follow_the_name_service() -> None:
    answers: list[Sequence[str] | OSError] = [
        ["10.0.0.1", "10.0.0.2"],
        socket.gaierror(socket.EAI_AGAIN, "try again"),
        ["10.0.0.2", "10.0.0.3"],
        [],
    ]

    async def resolver(name: str) -> Sequence[str]:
        assert name == "pods"
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    replicas = Replicas(["pods:8001"], resolver=resolver)
    await replicas._resolve()
    first, second = replicas.all
    assert (first.url, second.url) == ("10.0.0.1:8001", "10.0.0.2:8001")
    first.state = second.state = ReplicaState.READY
    await replicas._resolve()  # the name service does not answer
    assert not first.is_withdrawn
    await replicas._resolve()
    assert (first.is_withdrawn, first.state) == (True, ReplicaState.DRAINING)
    assert (second.is_withdrawn, second.state) == (False, ReplicaState.READY)
    assert [each.url for each in replicas.all] == ["10.0.0.1:8001", "10.0.0.2:8001", "10.0.0.3:8001"]
    await replicas._resolve()
    assert all(each.is_withdrawn for each in replicas.all)
    await replicas.close()


async def test_unknown_name_has_no_addresses() -> None:
    try:
        assert await resolve("no-such-host.invalid") == ()
    except socket.gaierror as error:
        assert error.errno == socket.EAI_AGAIN  # a machine without a name service


def test_free_places_are_those_of_the_model_less_what_runs() -> None:
    one = replica("a:1", concurrent_requests="2")
    two = replica("b:1")
    both = fleet(one, two)
    assert both.free() == {"video": 6, "world": 6}
    # What others run counts when two readings show it.
    for _ in range(2):
        two.record_metrics(MetricsPage({"video": 3}))
    assert both.free()["video"] == 3
    taken = [both.take("video") for _ in range(3)]
    assert all(taken) and both.take("video") is None
    assert [each.running("video") for each in (one, two)] == [2, 1]
    for each in taken:
        assert each is not None
        with each:
            pass
    assert both.free()["video"] == 3
    one.state = ReplicaState.DRAINING
    assert both.free()["video"] == 1
    assert both.take("video", without=frozenset({"b:1"})) is None
    assert both.served()["video"].ready == 1


async def test_sessions_are_given_in_line_and_a_moving_one_is_first() -> None:
    one = replica("a:1", max_sessions="1")
    replicas = fleet(one)
    told: dict[str, list[tuple[int, int]]] = {"second": [], "third": []}

    async def take(name: str) -> str:
        async def tell(position: int, depth: int) -> None:
            told[name].append((position, depth))

        place = await replicas.take_session("world", on_position=tell)
        async with place:
            return name

    first = await replicas.take_session("world")
    second = asyncio.create_task(take("second"))
    await asyncio.sleep(0.01)
    third = asyncio.create_task(take("third"))
    await asyncio.sleep(0.01)
    assert (told["second"], told["third"]) == ([(1, 1), (1, 2)], [(2, 2)]) or told["third"][0] == (2, 2)
    with pytest.raises(Overloaded, match="no session became free within"):
        await replicas.take_session("world", timeout_s=0.05)
    moving = asyncio.create_task(replicas.take_session("world", first=True))
    await asyncio.sleep(0.01)
    first.release()
    first.release()
    place = await asyncio.wait_for(moving, 5)
    assert not second.done()
    place.release()
    assert await asyncio.wait_for(asyncio.gather(second, third), 5) == ["second", "third"]
    assert one.sessions("world") == 0
    one.state = ReplicaState.UNREACHABLE
    with pytest.raises(NotReady, match="no replica that is ready serves the model"):
        await replicas.take_session("world")


async def test_session_that_the_server_refused_is_not_given_again_at_once() -> None:
    one = replica("a:1", max_sessions="3")
    replicas = fleet(one)
    place = await replicas.take_session("world")
    place.refuse()
    assert one.free_sessions("world") == 0
    one.record_metrics(MetricsPage(sessions_open={"world": 2}))
    assert one.free_sessions("world") == 1


def test_samples_that_nobody_reads_are_left_out_and_other_text_is_refused() -> None:
    counter = "# TYPE nv_inference_count counter\n"
    assert parse_metrics(counter + "nv_inference_count{not even labels\n") == MetricsPage()
    with pytest.raises(ValueError):
        parse_metrics(counter + "<html>no metrics here</html>\n")


def test_metrics_are_summed_over_their_series() -> None:
    page = parse_metrics(
        "# TYPE slipway_requests_running gauge\n"
        'slipway_requests_running{model="video"} 2\nslipway_requests_running{model="other"} 0\n'
        "# TYPE slipway_sessions_open gauge\n"
        'slipway_sessions_open{model="world"} 3\n'
        "# TYPE slipway_shutting_down gauge\n"
        'slipway_shutting_down{model="world"} 2\nslipway_shutting_down{model="other"} 0\n'
    )
    assert page.requests_running == {"video": 2, "other": 0} and page.sessions_open == {"world": 3}
    assert page.shutting_down == {"world"}
