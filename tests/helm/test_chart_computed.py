"""Numbers that the chart computes of others: graces, budgets, windows and sizes, for any values."""

from __future__ import annotations

import itertools
import re

import pytest
from helm_chart import EXAMPLES, Manifest, example, of_kind, only, pod_specs, render, server, server_pod

from slipway_serving.triton.start.checks import _SHARED_MEMORY_BASE_BYTES, _SHARED_MEMORY_PER_MODEL_BYTES
from slipway_serving.triton.termination import EXIT_GRACE_S

GPU: Manifest = {"image": {"repository": "slipway/server-gpu"}}


def seconds_after(arguments: list[str], flag: str) -> int:
    """The number of a flag in either image's spelling."""
    for position, argument in enumerate(arguments):
        if argument == flag:
            return int(arguments[position + 1])
        if argument.startswith(f"{flag}="):
            return int(argument.partition("=")[2])
    raise AssertionError(f"{flag} is not in {arguments}")


def pre_stop(container: Manifest) -> tuple[int, int]:
    """The seconds that preStop waits, and those that it gives to requests under way."""
    *shell, script = container["lifecycle"]["preStop"]["exec"]["command"]
    assert shell == ["/bin/sh", "-c"]
    found = re.fullmatch(r"sleep (\d+); slipway drain --(?:refuse|checkpoint) --timeout-s (\d+)", script)
    assert found
    return int(found[1]), int(found[2])


@pytest.mark.parametrize(("job", "before"), [*itertools.product((1, 600, 3000), (1, 45))])
def test_grace_period_covers_pre_stop_and_exit_timeout_which_covers_the_longest_job(
    job: int, before: int
) -> None:
    pod = server_pod({"timing": {"longestJob": job, "preStop": before}})
    (container,) = pod["containers"]
    exit_timeout = seconds_after(container["args"], "--exit-timeout-s")
    moving, drain = pre_stop(container)
    assert drain >= job
    assert exit_timeout >= job
    assert pod["terminationGracePeriodSeconds"] > moving + drain + exit_timeout + EXIT_GRACE_S


@pytest.mark.parametrize(("step", "before"), [*itertools.product((1, 12, 60), (1, 45))])
def test_grace_period_covers_one_step_rather_than_the_longest_job_when_videos_stop(
    step: int, before: int
) -> None:
    timing = {"longestJob": 3000, "longestStep": step, "preStop": before}
    pod = server_pod({"onStop": "checkpoint", "timing": timing})
    (container,) = pod["containers"]
    exit_timeout = seconds_after(container["args"], "--exit-timeout-s")
    moving, drain = pre_stop(container)
    assert (moving, drain, exit_timeout) == (before, step, step)
    grace = pod["terminationGracePeriodSeconds"]
    assert moving + drain + exit_timeout + EXIT_GRACE_S < grace < 3000


def test_spot_replica_sends_its_states_within_the_shortest_notice_when_its_node_goes() -> None:
    moving, drain = pre_stop(server(example("spot")))
    assert moving + drain <= 15


@pytest.mark.parametrize(("age", "sticky"), [(0, False), (1, False), (30, False), (300, False), (30, True)])
def test_pre_stop_lasts_until_the_last_connection_has_moved_on(age: int, sticky: bool) -> None:
    container = server({"timing": {"preStop": 10, "connectionAge": age}, "sticky": sticky})
    served_s, _ = pre_stop(container)
    moving = age > 0 and not sticky
    ages = [argument for argument in container["args"] if "connection-age" in argument]
    assert ages == ([f"--grpc-max-connection-age={age * 1000}"] if moving else [])
    assert served_s >= 10 + 1.1 * age if moving else served_s == 10


@pytest.mark.parametrize("load", [1, 4, 5, 299, 1800])
def test_startup_probe_waits_at_least_as_long_as_models_may_load(load: int) -> None:
    container = server({"timing": {"load": load}})
    probe = container["startupProbe"]
    budget = probe["periodSeconds"] * probe["failureThreshold"]
    assert load <= budget < load + 3 * probe["periodSeconds"]
    assert seconds_after(container["args"], "--ready-timeout-s") == load


@pytest.mark.parametrize("by", ["hpa", "keda"])
@pytest.mark.parametrize(("job", "asked", "window"), [(600, 300, 600), (60, 300, 300), (3600, 0, 3600)])
def test_scale_down_waits_at_least_for_the_longest_job(by: str, job: int, asked: int, window: int) -> None:
    values = {"timing": {"longestJob": job}, "autoscaling": {"by": by, "stabilization": asked}}
    kind = "HorizontalPodAutoscaler" if by == "hpa" else "ScaledObject"
    spec = only(render(values), kind)["spec"]
    behavior = (
        spec["behavior"] if by == "hpa" else spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    )
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == window


@pytest.mark.parametrize(("instances", "each"), [(1, 2), (16, 16), (24, 64), (300, 100)])
def test_shared_memory_has_room_for_every_instance_and_what_the_server_asks_for(
    instances: int, each: int
) -> None:
    values = {
        "sharedMemory": {"instances": instances, "perInstanceMiB": each},
        "resources": {"limits": {"memory": "64Gi"}},
    }
    (size,) = (
        int(volume["emptyDir"]["sizeLimit"].removesuffix("Mi"))
        for volume in server_pod(values)["volumes"]
        if volume["name"] == "shm"
    )
    assert size >= instances * each
    assert size << 20 >= _SHARED_MEMORY_BASE_BYTES + instances * _SHARED_MEMORY_PER_MODEL_BYTES
    assert {"name": "shm", "mountPath": "/dev/shm"} in server(values)["volumeMounts"]


def test_rollout_counts_as_stuck_only_after_preparing_and_loading() -> None:
    values = {"prepare": {"seconds": 7200}, "timing": {"load": 1800}}
    assert only(render(values), "Deployment")["spec"]["progressDeadlineSeconds"] >= 7200 + 1800
    bare = {"prepare": {"exports": []}, "timing": {"load": 1800}}
    assert 1800 < only(render(bare), "Deployment")["spec"]["progressDeadlineSeconds"] < 2000


def longest_job(pod: Manifest) -> int:
    return seconds_after(pod["containers"][0]["args"], "--exit-timeout-s")


def test_proxies_and_tests_wait_longer_than_the_longest_job_for_every_example() -> None:
    for values in (None, *EXAMPLES):
        manifests = render(values)
        longest = {
            manifest["metadata"]["labels"]["slipway/pool"]: longest_job(pod)
            for manifest in manifests
            for pod in pod_specs(manifest)
            if "terminationGracePeriodSeconds" in pod and "slipway/pool" in manifest["metadata"]["labels"]
        }
        # What leads to the gateway has no timeout that a job could reach: tests/helm/test_chart_gateway.py.
        manifests = [m for m in manifests if "slipway/pool" in m["metadata"]["labels"]]
        for manifest in manifests:
            pool = manifest["metadata"]["labels"]["slipway/pool"]
            if manifest["kind"] == "HTTPRoute":
                timeout = manifest["spec"]["rules"][0]["timeouts"]["request"]
                assert int(timeout.removesuffix("s")) > longest[pool]
            if manifest["kind"] == "BackendTrafficPolicy":
                limits = manifest["spec"]["timeout"]["http"].values()
                assert min(int(limit.removesuffix("s")) for limit in limits) > longest[pool]
            if manifest["kind"] == "Pod":
                assert manifest["spec"]["activeDeadlineSeconds"] > longest[pool]
        for ingress in of_kind(manifests, "Ingress"):
            annotations = ingress["metadata"]["annotations"]
            patience = int(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"])
            assert patience > longest[ingress["metadata"]["labels"]["slipway/pool"]]
