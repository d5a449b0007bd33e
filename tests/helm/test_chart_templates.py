"""What the chart renders for its pools: kinds, stores, engines, placement, autoscaling; and when nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_chart import CHART, Manifest, example, of_kind, only, render, server, server_pod
from server_fixtures import wait_until

GPU: Manifest = {"image": {"repository": "slipway/server-gpu"}, "gpu": {"count": 1}}
CLAIM: Manifest = {"models": {"store": "claim"}, "prepare": {"by": "job"}}
DEFAULT_KINDS = {
    "ServiceAccount",
    "Secret",
    "Service",
    "Deployment",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "Pod",
}


def kinds(values: Manifest) -> set[str]:
    return {manifest["kind"] for manifest in render(values)}


def test_defaults_render_what_one_pool_on_cpus_needs_and_nothing_else() -> None:
    assert kinds({}) == DEFAULT_KINDS
    assert not set(server()["resources"]["limits"]) - {"memory"}


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ({"workload": "StatefulSet"}, {"StatefulSet"}),
        (CLAIM, {"Job", "PersistentVolumeClaim"}),
        ({"autoscaling": {"by": "hpa"}}, {"HorizontalPodAutoscaler"}),
        ({"autoscaling": {"by": "keda"}}, {"ScaledObject"}),
        ({"monitoring": {"serviceMonitor": True}}, {"ServiceMonitor"}),
        ({"monitoring": {"rules": True}}, {"PrometheusRule"}),
        ({"monitoring": {"dashboard": True}}, {"ConfigMap"}),
        ({"limits": {"wan_t2v": {"steps": 20}}}, {"ConfigMap"}),
        ({"ingress": {"enabled": True, "host": "a.b", "tlsSecret": "t"}}, {"Ingress"}),
        (
            {"gatewayApi": {"enabled": True, "host": "a.b", "parentRefs": [{"name": "g"}]}},
            {"HTTPRoute", "GRPCRoute"},
        ),
        ({"gatewayApi": {"envoy": True}}, set()),
    ],
)
def test_kinds_appear_with_their_setting_only(values: Manifest, more: set[str]) -> None:
    replaced = {"Deployment"} if "StatefulSet" in more else set()
    assert kinds(values) == (DEFAULT_KINDS - replaced) | more


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({"disruption": {"enabled": False}}, "PodDisruptionBudget"),
        ({"networkPolicy": {"enabled": False}}, "NetworkPolicy"),
        ({"control": {"secret": "own"}}, "Secret"),
        ({"test": {"arguments": []}}, "Pod"),
    ],
)
def test_kinds_go_when_they_are_switched_off(values: Manifest, gone: str) -> None:
    assert kinds(values) == DEFAULT_KINDS - {gone}


def test_each_pool_has_its_own_workload_service_and_budget_with_its_settings_over_the_shared_ones() -> None:
    manifests = render(example("pools"))
    workloads = {m["metadata"]["name"]: m for m in of_kind(manifests, "Deployment")}
    assert list(workloads) == ["shop-slipway-airimu", "shop-slipway-wakeword", "shop-slipway-wan"]
    images = {name: m["spec"]["template"]["spec"]["containers"][0]["image"] for name, m in workloads.items()}
    assert images["shop-slipway-wan"].startswith("slipway/server-gpu:")
    assert images["shop-slipway-airimu"].startswith("slipway/server-cpu:")
    assert [m["metadata"]["name"] for m in of_kind(manifests, "ScaledObject")] == [
        "shop-slipway-wakeword",
        "shop-slipway-wan",
    ]
    assert workloads["shop-slipway-airimu"]["spec"]["replicas"] == 1
    assert len(of_kind(manifests, "PodDisruptionBudget")) == 2  # airimu's is off: false overrides true
    assert len(of_kind(manifests, "Service")) == 6
    assert len(of_kind(manifests, "Secret")) == 1
    selectors = {json.dumps(m["spec"]["selector"]["matchLabels"]) for m in workloads.values()}
    assert len(selectors) == 3


def test_pool_overrides_with_false_zero_and_empty_lists_too() -> None:
    pools = {"a": {"sticky": False, "timing": {"connectionAge": 0}, "arguments": []}, "b": {}}
    manifests = render({"sticky": True, "arguments": ["--rate-limit=off"], "pools": pools})
    own, shared = (only(manifests, "Service", f"shop-slipway-{name}")["spec"] for name in "ab")
    assert ("sessionAffinity" in own, "sessionAffinity" in shared) == (False, True)
    first, second = (
        only(manifests, "Deployment", f"shop-slipway-{n}")["spec"]["template"]["spec"]["containers"][0][
            "args"
        ]
        for n in "ab"
    )
    assert "--" not in first
    assert second[-2:] == ["--", "--rate-limit=off"]


def test_image_tag_is_the_charts_version_unless_given() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert server()["image"] == f"slipway/server-cpu:{version}"
    assert server({"image": {"tag": "7"}})["image"] == "slipway/server-cpu:7"


@pytest.mark.parametrize(
    ("values", "volume", "repository"),
    [
        ({}, {"emptyDir": {"sizeLimit": "20Gi"}}, "/store/models-set-"),
        (CLAIM, {"persistentVolumeClaim": {"claimName": "shop-slipway-models-1eb5a5"}}, "/store/models-set-"),
        (
            {"models": {"store": "claim", "claim": "own", "path": "v2"}, "prepare": {"exports": []}},
            {"persistentVolumeClaim": {"claimName": "own"}},
            "/store/v2",
        ),
        (
            {"models": {"store": "hostPath", "hostPath": "/data"}},
            {"hostPath": {"path": "/data", "type": "Directory"}},
            "/store/models-set-",
        ),
        ({"models": {"store": "image"}, "prepare": {"exports": []}}, None, "/models"),
    ],
)
def test_store_is_mounted_read_only_and_served_from_its_folder(
    values: Manifest, volume: Manifest | None, repository: str
) -> None:
    pod = server_pod(values)
    (container,) = pod["containers"]
    flag, served = container["args"][:2]
    assert flag == "--repository" and served.startswith(repository)
    assert len(served) == len(repository) + 10 * repository.endswith("-set-")
    volumes = {v.pop("name"): v for v in pod["volumes"]}
    assert volumes.get("store") == volume
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert ("store" in mounts) == (volume is not None)
    assert volume is None or mounts["store"]["readOnly"] is True


def test_object_store_is_read_by_triton_itself_with_the_secrets_variables() -> None:
    container = server(example("s3"))
    assert container["args"][:2] == ["--repository", "s3://models/slipway/2026-11"]
    assert container["envFrom"] == [{"secretRef": {"name": "object-store"}}]
    assert {"name": "credentials", "mountPath": "/secrets/store", "readOnly": True} in container[
        "volumeMounts"
    ]
    assert "initContainers" not in server_pod(example("s3"))
    policy = only(render(example("s3")), "NetworkPolicy", "shop-slipway")
    assert [{"port": 443}] in [rule["ports"] for rule in policy["spec"]["egress"]]


def test_claim_of_the_chart_outlives_its_release_and_an_own_one_is_not_made() -> None:
    claim = only(render(CLAIM), "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert not of_kind(render({"models": {"store": "claim", "claim": "own"}}), "PersistentVolumeClaim")


def test_job_prepares_once_and_pods_wait_for_its_mark() -> None:
    manifests = render(CLAIM)
    job = only(manifests, "Job")
    (prepare,) = job["spec"]["template"]["spec"]["containers"]
    script = prepare["args"][0]
    folder = server(CLAIM)["args"][1]
    assert f"models={folder}\n" in script
    assert 'slipway export wan_t2v --checkpoint demo --repository "$models"' in script
    (wait,) = server_pod(CLAIM)["initContainers"]
    assert f"until [ -f {folder}/.prepared ]; do" in wait["args"][0]
    selector = "app.kubernetes.io/instance=shop,app.kubernetes.io/component=prepare,slipway/pool=default"
    assert f"kubectl get jobs,pods --selector {selector}" in wait["args"][0]
    wanted = dict(each.split("=") for each in selector.split(",")).items()
    assert wanted <= job["metadata"]["labels"].items()
    assert wait["resources"]["limits"] == {"memory": "64Mi"}
    assert "readOnly" not in prepare["volumeMounts"][0]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert not only(manifests, "Service", "shop-slipway")["spec"]["selector"].items() <= labels.items()


def test_prepare_script_exports_once_and_again_only_after_a_failure(tmp_path: Path) -> None:
    (prepare,) = server_pod()["initContainers"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "store").mkdir()
    calls = tmp_path / "calls"
    placeholder_folder = tmp_path / "bin" / "slipway"
    placeholder_folder.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\nmkdir -p "$6"\n[ ! -e {tmp_path}/broken ]\n'
    )
    placeholder_folder.chmod(0o755)
    script = prepare["args"][0].replace("/store", str(tmp_path / "store"))

    def run() -> tuple[int, int]:
        command = [*prepare["command"], script]
        done = subprocess.run(command, env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, check=False)
        return done.returncode, len(calls.read_text().splitlines())

    (tmp_path / "broken").touch()
    assert run() == (1, 1)
    (tmp_path / "broken").unlink()
    assert [run(), run()] == [(0, 2), (0, 2)]
    folder = Path(server()["args"][1].replace("/store", str(tmp_path / "store")))
    assert calls.read_text().splitlines()[-1] == f"export wan_t2v --checkpoint demo --repository {folder}"
    # A folder that is removed is prepared again: its mark goes with it.
    shutil.rmtree(folder)
    assert run() == (0, 3)


def test_prepare_script_removes_all_but_the_newest_former_sets(tmp_path: Path) -> None:
    (prepare,) = server_pod({"prepare": {"keep": 2}})["initContainers"]
    own = Path(server()["args"][1].replace("/store", str(tmp_path)))
    former = [tmp_path / f"models-set-{number}" for number in range(4)]
    for age, folder in enumerate(former):
        folder.mkdir()
        (folder / ".prepared").touch()
        os.utime(folder / ".prepared", (1000 - age, 1000 - age))
    unfinished, foreign = tmp_path / "models-set-unfinished", tmp_path / "other-set-0"
    unfinished.mkdir()
    foreign.mkdir()
    (foreign / ".prepared").touch()
    own.mkdir()
    (own / ".prepared").touch()
    script = prepare["args"][0].replace("/store", str(tmp_path))
    done = subprocess.run([*prepare["command"], script], capture_output=True, text=True, check=True)
    assert f"prepared before: {own}" in done.stdout
    assert {path for path in tmp_path.iterdir() if path.is_dir()} == {own, *former[:2], unfinished, foreign}


def test_prepare_scripts_of_a_shared_store_run_one_after_the_other(tmp_path: Path) -> None:
    (prepare,) = server_pod()["initContainers"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "store").mkdir()
    program = tmp_path / "bin" / "slipway"
    program.write_text(
        f"#!/bin/sh\necho call >> {tmp_path}/calls\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\n"
        'mkdir -p "$6"\n'
    )
    program.chmod(0o755)
    script = prepare["args"][0].replace("/store", str(tmp_path / "store"))
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}

    def begin() -> subprocess.Popen[str]:
        command = [*prepare["command"], script]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    with begin() as first:
        wait_until((tmp_path / "calls").exists, "the first begins")
        with begin() as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "another pod prepares this store; waiting for it\n"
            (tmp_path / "go").touch()
            assert "prepared before" in second.stdout.read()
    assert (first.returncode, second.returncode) == (0, 0)
    assert (tmp_path / "calls").read_text() == "call\n"


def test_pod_prepares_its_own_store_when_there_is_none_to_share() -> None:
    (prepare,) = server_pod()["initContainers"]
    assert prepare["name"] == "prepare"
    assert 'slipway export wan_t2v --checkpoint demo --repository "$models"' in prepare["args"][0]
    assert not of_kind(render(), "Job")


def test_job_has_another_name_when_it_prepares_something_else() -> None:
    def name(**changes: Any) -> str:
        return str(only(render({**CLAIM, **changes}), "Job")["metadata"]["name"])

    others = [
        name(prepare={"by": "job", "exports": ["wan_t2v --checkpoint tiny --precision int8"]}),
        name(prepare={"by": "job", "image": {"tag": "2"}}),
        name(models={"store": "claim", "path": "v2"}),
    ]
    assert len({name(), *others}) == 4
    assert name() == name(replicas=3)


def test_engines_lie_in_a_folder_of_their_compute_capability_and_tensorrt_and_run_on_such_nodes() -> None:
    manifests = render(example("gpu-tensorrt"))
    version = yaml.safe_load((CHART / "values.yaml").read_text())["gpu"]["tensorrt"]
    pod = only(manifests, "Deployment")["spec"]["template"]["spec"]
    (prepare,), (triton,) = pod["initContainers"], pod["containers"]
    folder = triton["args"][1]
    assert folder.startswith(f"/store/models-sm90-trt{version}-set-")
    assert f"models={folder}\n" in prepare["args"][0]
    assert "--engine tensorrt --precision fp16" in prepare["args"][0]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0"}
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    for container in (prepare, triton):
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    token = {"secretKeyRef": {"name": "hugging-face", "key": "token"}}
    assert {"name": "HF_TOKEN", "valueFrom": token} in prepare["env"]


def test_cpu_pods_ask_for_no_gpu() -> None:
    pod = server_pod()
    assert "nvidia" not in json.dumps(pod)
    assert not {"tolerations", "nodeSelector", "runtimeClassName"} & set(pod)


def test_mig_slice_is_the_resource_and_each_replica_keeps_its_engines() -> None:
    manifests = render(example("mig"))
    workload = only(manifests, "StatefulSet")
    container = workload["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/mig-1g.18gb": 1}
    (claim,) = workload["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "100Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    assert workload["spec"]["serviceName"] == "shop-slipway-pods"
    assert "store" not in {volume["name"] for volume in workload["spec"]["template"]["spec"]["volumes"]}


@pytest.mark.parametrize("values", [{}, GPU], ids=["cpu", "gpu"])
def test_probes_ask_readiness_for_start_and_traffic_and_life_for_restarts(values: Manifest) -> None:
    container = server(values)
    assert container["startupProbe"]["httpGet"]["path"] == "/v2/health/ready"
    probes = [container["readinessProbe"], container["livenessProbe"]]
    assert [probe["httpGet"] for probe in probes] == [
        {"path": "/ready", "port": "probes"},
        {"path": "/live", "port": "probes"},
    ]
    # The server gives up an answer before the probe does, so that the reason is told.
    assert all(probe["timeoutSeconds"] > 5 for probe in probes)
    # A process that ended gets the time to be there again before the replica is restarted for it.
    ready_s, live_s = (probe["periodSeconds"] * probe["failureThreshold"] for probe in probes)
    assert ready_s * 2 <= live_s


def test_rollout_starts_a_replica_before_it_stops_one_unless_there_is_no_spare_gpu() -> None:
    default, gpu = (
        only(render(v), "Deployment")["spec"]["strategy"] for v in (None, example("gpu-tensorrt"))
    )
    assert default["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert gpu["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_replicas_spread_over_hosts_and_zones() -> None:
    constraints = server_pod(example("gpu-tensorrt"))["topologySpreadConstraints"]
    assert [(c["topologyKey"], c["whenUnsatisfiable"]) for c in constraints] == [
        ("kubernetes.io/hostname", "DoNotSchedule"),
        ("topology.kubernetes.io/zone", "ScheduleAnyway"),
    ]
    labels = only(render(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert constraints[0]["labelSelector"]["matchLabels"].items() <= labels.items()


def test_placement_and_additions_reach_the_pod() -> None:
    values: Manifest = {
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "own", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClass": "high",
        "env": [{"name": "OMP_NUM_THREADS", "value": "4"}],
        "podLabels": {"team": "video"},
        "podAnnotations": {"note": "x"},
        "imagePullSecrets": [{"name": "registry"}],
    }
    template = only(render({**values, **GPU}), "Deployment")["spec"]["template"]
    pod = template["spec"]
    assert pod["nodeSelector"] == {"disk": "nvme"}
    assert [t["key"] for t in pod["tolerations"]] == ["own", "nvidia.com/gpu"]
    assert (pod["affinity"], pod["priorityClassName"]) == ({"podAntiAffinity": {}}, "high")
    assert values["env"][0] in pod["containers"][0]["env"]
    assert template["metadata"]["labels"]["team"] == "video"
    assert template["metadata"]["annotations"] == {"note": "x"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize(("name", "kind"), [("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")])
def test_autoscaler_follows_work_queue_and_ratio_and_is_slow_down_quick_up(name: str, kind: str) -> None:
    spec = only(render(example(name)), kind)["spec"]
    behavior = spec.get("behavior") or spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 900
    assert behavior["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    if kind == "ScaledObject":
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 10)
        found = [(t["name"], t["metricType"], t["metadata"]["threshold"]) for t in spec["triggers"]]
        assert found == [
            ("in-flight", "AverageValue", "1.5"),
            ("pending-requests", "AverageValue", "2"),
            ("queue-compute-ratio", "Value", "0.5"),
        ]
    else:
        assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 10)
        found = [(m["pods"]["metric"]["name"], m["pods"]["target"]["averageValue"]) for m in spec["metrics"]]
        assert found == [
            ("slipway:pod_in_flight", "1.5"),
            ("slipway:pod_pending_requests", "2"),
            ("slipway:pod_queue_compute_ratio", "0.5"),
        ]


def test_hpa_reads_metrics_of_the_recording_rules() -> None:
    groups = yaml.safe_load((CHART.parents[1] / "observability" / "rules.yml").read_text())["groups"]
    recorded = {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    metrics = only(render(example("hpa")), "HorizontalPodAutoscaler")["spec"]["metrics"]
    names = {metric["pods"]["metric"]["name"] for metric in metrics}
    assert names and names <= recorded


def test_autoscaler_leaves_out_targets_of_zero() -> None:
    scaled = only(
        render({"autoscaling": {"by": "keda", "inFlight": 0, "pendingRequests": 1}}), "ScaledObject"
    )
    assert [trigger["name"] for trigger in scaled["spec"]["triggers"]] == ["pending-requests"]
    assert [
        t["name"] for t in only(render({"autoscaling": {"by": "keda"}}), "ScaledObject")["spec"]["triggers"]
    ] == ["in-flight"]
