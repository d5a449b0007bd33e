"""Values that other clusters need: registries, proxies, certificates, security contexts, quotas, scaling."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_chart import (
    CHART,
    Manifest,
    breaches,
    example,
    helm,
    of_kind,
    only,
    pod_specs,
    render,
    server,
    server_pod,
)

JOB: Manifest = {"models": {"store": "claim"}, "prepare": {"by": "job"}}
ALL_PODS: Manifest = {**JOB, "load": {"enabled": True}}
EVERY_POD: Manifest = {
    **ALL_PODS,
    "gateway": {
        "enabled": True,
        "role": "split",
        "database": {"secret": "database"},
        "contents": {"url": "s3://videos/a"},
    },
}
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]


def containers(manifests: list[Manifest]) -> Iterator[Manifest]:
    for manifest in manifests:
        for pod in pod_specs(manifest):
            yield from (*pod["containers"], *pod.get("initContainers", []))


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Return the metadata of each kind of pod by its component."""
    templates = [m if m["kind"] == "Pod" else m["spec"]["template"] for m in manifests if list(pod_specs(m))]
    return {each["metadata"]["labels"]["app.kubernetes.io/component"]: each["metadata"] for each in templates}


def test_global_registry_is_in_front_of_every_image() -> None:
    manifests = render({**EVERY_POD, "global": {"imageRegistry": "registry.example.com/"}})
    images = {container["image"] for container in containers(manifests)}
    names = ("server-cpu", "export", "client", "load", "gateway")
    assert images == {f"registry.example.com/slipway/{name}:{VERSION}" for name in names}


def test_global_pull_secrets_join_those_of_the_chart_in_every_pod() -> None:
    values = {
        **EVERY_POD,
        "imagePullSecrets": [{"name": "own"}],
        "global": {"imagePullSecrets": ["a", {"name": "own"}]},
    }
    for manifest in render(values):
        for pod in pod_specs(manifest):
            assert pod["imagePullSecrets"] == [{"name": "own"}, {"name": "a"}]


def test_image_is_named_by_its_digest_when_there_is_one() -> None:
    values = {
        **EVERY_POD,
        "gateway": {**EVERY_POD["gateway"], "image": {"digest": DIGEST}},
        "image": {"digest": DIGEST},
        "prepare": {"by": "job", "image": {"digest": DIGEST}},
        "test": {"image": {"digest": DIGEST}},
        "load": {"enabled": True, "image": {"digest": DIGEST}},
    }
    images = {container["image"] for container in containers(render(values))}
    names = ("server-cpu", "export", "client", "load", "gateway")
    assert images == {f"slipway/{name}@{DIGEST}" for name in names}


def test_environment_reaches_servers_the_job_and_the_test() -> None:
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    own = {"name": "HF_ENDPOINT", "value": "https://mirror.example.com"}
    manifests = render({**JOB, "env": [proxy], "prepare": {"by": "job", "env": [own]}})
    by_name = {each["name"]: each.get("env", []) for each in containers(manifests)}
    assert all(proxy in by_name[name] for name in ("triton", "prepare", "client"))
    assert own in by_name["prepare"] and own not in by_name["triton"]


def test_hub_token_comes_from_one_key_of_a_secret() -> None:
    values = {"prepare": {"hubToken": {"secret": "hub", "key": "my-token"}}}
    (prepare,) = server_pod(values)["initContainers"]
    source = {"secretKeyRef": {"name": "hub", "key": "my-token"}}
    assert {"name": "HF_TOKEN", "valueFrom": source} in prepare["env"]
    assert "envFrom" not in prepare


def test_volumes_and_init_containers_reach_servers_and_what_prepares() -> None:
    volume = {"name": "ca", "configMap": {"name": "company-ca"}}
    mount = {"name": "ca", "mountPath": "/etc/ssl/company", "readOnly": True}
    first = {"name": "first", "image": "busybox", "volumeMounts": []}
    manifests = render({**JOB, "volumes": [volume], "volumeMounts": [mount], "initContainers": [first]})
    for kind in ("Deployment", "Job"):
        (pod,) = pod_specs(only(manifests, kind))
        assert volume in pod["volumes"] and mount in pod["containers"][0]["volumeMounts"]
    assert [each["name"] for each in next(pod_specs(only(manifests, "Deployment")))["initContainers"]] == [
        "first",
        "wait",
    ]


def test_labels_and_annotations_reach_the_pods_of_job_test_and_load() -> None:
    own: dict[str, Any] = {
        "podLabels": {"team": "video"},
        "podAnnotations": {"sidecar.istio.io/inject": "false"},
    }
    values = {**JOB, "prepare": {"by": "job", **own}, "test": own, "load": {"enabled": True, **own}}
    found = pods(render(values))
    assert set(found) == {"server", "prepare", "test", "load", "load-worker"}
    for component in ("prepare", "test", "load", "load-worker"):
        assert found[component]["labels"]["team"] == "video"
        assert found[component]["annotations"]["sidecar.istio.io/inject"] == "false"
    assert "team" not in found["server"]["labels"]


def test_security_contexts_leave_the_user_to_openshift_when_they_are_null() -> None:
    nobody = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    values = {**EVERY_POD, "podSecurityContext": nobody, "securityContext": {"readOnlyRootFilesystem": False}}
    manifests = render(values)
    for manifest in manifests:
        for pod in pod_specs(manifest):
            assert pod["securityContext"] == {
                "runAsNonRoot": True,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            }
    assert all(each["securityContext"]["readOnlyRootFilesystem"] is False for each in containers(manifests))


def test_every_container_has_resources_that_a_quota_asks_for() -> None:
    for container in containers(render(EVERY_POD)):
        assert container["resources"].get("requests"), container["name"]
    small = {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "99Mi"}}
    manifests = render(
        {**JOB, "prepare": {"by": "job", "waitResources": small}, "test": {"resources": small}}
    )
    by_name = {each["name"]: each["resources"] for each in containers(manifests)}
    assert by_name["wait"] == by_name["client"] == small


def test_service_takes_a_type_and_annotations() -> None:
    internal = {"service.beta.kubernetes.io/aws-load-balancer-internal": "true"}
    values = {
        "type": "LoadBalancer",
        "annotations": internal,
        "loadBalancerClass": "service.k8s.aws/nlb",
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
    }
    service = only(render({"service": values}), "Service", "shop-slipway")
    assert service["metadata"]["annotations"] == internal
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["loadBalancerClass"] == "service.k8s.aws/nlb"
    assert service["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert only(render({"service": values}), "Service", "shop-slipway-pods")["spec"]["clusterIP"] == "None"


def test_annotations_of_one_protocols_ingress_stay_off_the_other() -> None:
    key = "nginx.ingress.kubernetes.io/backend-protocol"
    ingress = {
        "enabled": True,
        "host": "a.b",
        "tlsSecret": "t",
        "annotations": {"shared": "yes", "own": "no"},
        "grpc": {"annotations": {"own": "grpc"}},
        "http": {"annotations": {"http-only": "yes"}},
    }
    manifests = render({"ingress": ingress})
    http, grpc = (
        only(manifests, "Ingress", f"shop-slipway-{name}")["metadata"]["annotations"]
        for name in ("http", "grpc")
    )
    assert (http[key], http["shared"], http["own"], http["http-only"]) == ("HTTP", "yes", "no", "yes")
    assert (grpc[key], grpc["shared"], grpc["own"]) == ("GRPC", "yes", "grpc") and "http-only" not in grpc


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("s3://models/a", 443),
        ("s3://https://minio.example.com:9000/models", 9000),
        ("s3://http://minio:9000/models", 9000),
        ("s3://http://minio/models", 80),
        ("gs://models", 443),
    ],
)
def test_policy_lets_servers_out_to_the_port_of_the_object_store(url: str, port: int) -> None:
    gpu = {"repository": "slipway/server-gpu"}
    values = {"image": gpu, "models": {"store": "url", "url": url}, "prepare": {"exports": []}}
    policy = only(render(values), "NetworkPolicy", "shop-slipway")
    assert [{"port": port}] in [rule["ports"] for rule in policy["spec"]["egress"]]


def test_policies_let_the_test_and_the_load_test_in_when_clients_are_others() -> None:
    clients = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "studio"}}}]
    manifests = render({**ALL_PODS, "networkPolicy": {"clients": clients}})
    first, own = only(manifests, "NetworkPolicy", "shop-slipway")["spec"]["ingress"][0]["from"]
    assert first == clients[0]
    (rule,) = own["podSelector"]["matchExpressions"]
    assert set(rule["values"]) == {"test", "load", "load-worker"}
    callers = only(manifests, "NetworkPolicy", "shop-slipway-callers")["spec"]
    assert callers["podSelector"]["matchExpressions"] == [rule]
    found = pods(manifests)
    for component in rule["values"]:
        assert own["podSelector"]["matchLabels"].items() <= found[component]["labels"].items()
    prepare = only(manifests, "NetworkPolicy", "shop-slipway-prepare")["spec"]
    assert prepare["podSelector"]["matchLabels"].items() <= found["prepare"]["labels"].items()
    assert prepare["ingress"] == [] and {"ports": [{"port": 443}]} in prepare["egress"]


def test_keda_asks_prometheus_with_credentials_and_scales_from_none_by_a_trigger_of_its_own() -> None:
    cron = {
        "type": "cron",
        "metadata": {"timezone": "UTC", "start": "0 8 * * *", "end": "0 18 * * *", "desiredReplicas": "1"},
    }
    autoscaling = {
        "by": "keda",
        "minReplicas": 0,
        "authenticationRef": {"name": "prometheus", "kind": "ClusterTriggerAuthentication"},
        "triggers": [cron],
        "fallback": {"failureThreshold": 3, "replicas": 2},
    }
    scaled = only(render({"autoscaling": autoscaling}), "ScaledObject")
    first, own = scaled["spec"]["triggers"]
    assert first["authenticationRef"] == autoscaling["authenticationRef"] and own == cron
    assert scaled["spec"]["minReplicaCount"] == 0 and scaled["spec"]["fallback"] == autoscaling["fallback"]
    assert not breaches(scaled, "1.31")


def test_monitoring_objects_carry_namespace_interval_relabelings_and_dashboard_labels() -> None:
    relabeling = {"action": "replace", "targetLabel": "cluster", "replacement": "west"}
    monitoring = {
        "serviceMonitor": True,
        "rules": True,
        "dashboard": True,
        "namespace": "monitoring",
        "interval": "30s",
        "relabelings": [relabeling],
        "metricRelabelings": [{"action": "drop", "regex": "go_.*", "sourceLabels": ["__name__"]}],
        "dashboardLabels": {"dashboards": "yes"},
        "dashboardAnnotations": {"grafana_folder": "Slipway"},
    }
    manifests = render({"monitoring": monitoring})
    monitor, rule, board = (
        only(manifests, kind) for kind in ("ServiceMonitor", "PrometheusRule", "ConfigMap")
    )
    assert {each["metadata"]["namespace"] for each in (monitor, rule, board)} == {"monitoring"}
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["models"]}
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["interval"] == "30s" and endpoint["relabelings"] == [relabeling]
    assert endpoint["metricRelabelings"] == monitoring["metricRelabelings"]
    assert board["metadata"]["labels"]["dashboards"] == "yes"
    assert "grafana_dashboard" in board["metadata"]["labels"]  # a map of values joins the default
    assert board["metadata"]["annotations"] == {"grafana_folder": "Slipway"}
    for manifest in manifests:
        assert not breaches(manifest, "1.31"), manifest["kind"]


def test_revisions_are_spread_by_themselves_when_keys_are_given() -> None:
    keys = ["pod-template-hash"]
    for constraint in server_pod({"spread": {"matchLabelKeys": keys}})["topologySpreadConstraints"]:
        assert constraint["matchLabelKeys"] == keys


def test_extra_objects_are_rendered_with_the_releases_names() -> None:
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}}
    assert only(render({"extraObjects": [extra]}), "ConfigMap")["metadata"]["name"] == "shop-more"


def test_liveness_forgives_a_model_that_takes_its_load_time_to_be_started_again() -> None:
    for load in (60, 300, 1800):
        probe = server({"timing": {"load": load}})["livenessProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= load + 60


def test_helm_test_asks_what_the_store_holds() -> None:
    def asked(values: Manifest) -> list[str]:
        return list(only(render(values), "Pod")["spec"]["containers"][0]["args"])

    assert asked({})[:2] == ["generate", "wan_t2v"]
    assert asked({"prepare": {"exports": ["airimu --checkpoint tiny"]}}) == [
        "ready",
        "--url",
        "shop-slipway:8001",
    ]
    assert asked({"test": {"arguments": ["ready", "--live"]}})[:2] == ["ready", "--live"]
    assert not of_kind(render({"test": {"arguments": []}}), "Pod")


def test_each_set_of_exports_has_a_folder_of_its_own() -> None:
    def folder(**prepare: Any) -> str:
        return str(server({**JOB, "prepare": {"by": "job", **prepare}})["args"][1])

    sets = [
        folder(),
        folder(exports=["wan_t2v --checkpoint tiny --queue-limit 4"]),
        folder(exports=["airimu --checkpoint tiny"]),
        folder(image={"tag": "2"}),
    ]
    assert len(set(sets)) == 4
    assert folder() == folder(seconds=99) == folder(by="job", resources={"requests": {"cpu": "2"}})


def test_a_job_of_a_gpu_pool_asks_for_no_gpu_when_it_must_not() -> None:
    gpu = {"image": {"repository": "slipway/server-gpu"}, "gpu": {"count": 1}}
    manifests = render({**JOB, **gpu, "prepare": {"by": "job", "gpu": False}})
    (job,) = pod_specs(only(manifests, "Job"))
    assert "limits" not in job["containers"][0]["resources"]


def test_chart_is_switched_by_the_condition_of_a_parent_chart(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "parent" / "charts" / "slipway")
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    dependency = {"name": "slipway", "version": version, "condition": "slipway.enabled"}
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]}
    (tmp_path / "parent" / "Chart.yaml").write_text(yaml.safe_dump(chart))
    on, off = (
        helm("template", "shop", tmp_path / "parent", "--set", f"slipway.enabled={value}")
        for value in ("true", "false")
    )
    assert on.returncode == off.returncode == 0, on.stderr + off.stderr
    assert "kind: Deployment" in on.stdout and "kind: Deployment" not in off.stdout


def test_notes_name_what_an_uninstall_leaves_and_the_key_that_argo_would_make_anew() -> None:
    notes = helm("install", "shop", CHART, "--dry-run", "--namespace", "models").stdout
    if not notes:  # a dry run needs a cluster with this Helm: the template's text says it
        notes = (CHART / "templates" / "NOTES.txt").read_text()
    assert "get persistentvolumeclaims --selector app.kubernetes.io/instance=" in notes
    assert "delete jobs,pods --selector app.kubernetes.io/instance=" in notes
    assert "control.secret" in notes


def test_everything_example_uses_no_gpu_for_a_job() -> None:
    manifests = render(example("everything"))
    for job in of_kind(manifests, "Job"):
        for pod in pod_specs(job):
            assert all("nvidia.com/gpu" not in str(each["resources"]) for each in pod["containers"])


def test_servers_listen_on_ipv6_where_a_cluster_has_nothing_else() -> None:
    given = server({"address": "::"})["args"]
    assert given[given.index("--host") + 1] == "::"
    assert "::" not in "".join(server()["args"])
