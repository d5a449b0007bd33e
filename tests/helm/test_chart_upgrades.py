"""Every setting and version can be changed by `helm upgrade`: what keeps its name keeps its fixed fields.

Kubernetes refuses a change of some fields of an object that is there ("field is immutable"), after Helm has
patched others. The walk changes one setting at a time and compares what keeps its name.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_chart import CHART, Manifest, helm, render, template

pytestmark = pytest.mark.long

JOB: Manifest = {"models": {"store": "claim"}, "prepare": {"by": "job"}}
OWN_VOLUMES: Manifest = {"workload": "StatefulSet"}
GATEWAY: Manifest = {
    "enabled": True,
    "role": "split",
    "database": {"secret": "database"},
    "contents": {"url": "s3://videos/a", "secret": "contents"},
    "workers": {"autoscaling": {"enabled": True}},
    "ingress": {"enabled": True, "host": "c.example"},
    "route": {"enabled": True, "host": "d.example", "parentRefs": [{"name": "g"}], "envoy": True},
}
GPU: Manifest = {"image": {"repository": "slipway/server-gpu"}, "gpu": {"count": 1}}
OUTSIDE: Manifest = {
    "ingress": {"enabled": True, "host": "a.example", "tlsSecret": "tls"},
    "gatewayApi": {"enabled": True, "host": "b.example", "parentRefs": [{"name": "g"}], "envoy": True},
    "monitoring": {"serviceMonitor": True, "rules": True, "dashboard": True},
    "autoscaling": {"by": "hpa"},
    "gateway": GATEWAY,
    "tls": {"secret": "certificates"},
    "load": {"enabled": True},
}
# Pools of three shapes in one release; a setting that not all of them can have is changed in one that can.
POOLS: Manifest = {"plain": {}, "job": JOB, "volumes": OWN_VOLUMES}
SHAPES: dict[str, Manifest] = {
    "all pools": {**OUTSIDE, "pools": POOLS},
    "default": {},
    "job": JOB,
    "own volumes": OWN_VOLUMES,
    "gpu": GPU,
    "outside": OUTSIDE,
    "keda": {"autoscaling": {"by": "keda"}},
    "gateway": {"gateway": {"enabled": True}},
    "gateway in parts": {"gateway": GATEWAY, "autoscaling": {"by": "keda"}},
    "ready repository": {"models": {"store": "image"}, "prepare": {"exports": []}},
}
# Settings whose other values are of a kind of their own.
OTHER: dict[str, Any] = {
    "models.store": "claim",
    "models.size": "30Gi",
    "models.accessModes": ["ReadWriteOnce"],
    "models.claim": "other-claim",
    "models.hostPath": "/other",
    "models.url": "s3://bucket/other",
    "prepare.exports": ["wakeword --checkpoint tiny"],
    "prepare.resources": {"requests": {"cpu": "3"}},
    "resources": {"requests": {"cpu": "3"}, "limits": {"memory": "9Gi"}},
    "gpu.computeCapability": "9.0",
    "gpu.resource": "nvidia.com/mig-1g.10gb",
    "gpu.tensorrt": "11.4.0",
    "autoscaling.prometheus": "http://other:9090",
    "arguments": ["--log-verbose=1"],
    "limits": {"wan_t2v": {"steps": 20}},
    "env": [{"name": "A", "value": "b"}],
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "nodeSelector": {"disk": "fast"},
    "affinity": {"podAffinity": {}},
    "imagePullSecrets": [{"name": "registry"}],
    "global.imagePullSecrets": ["registry"],
    "global.imageRegistry": "registry.example.com",
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}],
    "podSecurityContext": {"runAsUser": 2000},
    "securityContext": {"privileged": True},
    "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "volumeMounts": [{"name": "shm", "mountPath": "/other"}],
    "initContainers": [{"name": "first", "image": "busybox"}],
    "service.type": "LoadBalancer",
    "service.loadBalancerSourceRanges": ["10.0.0.0/8"],
    "prepare.env": [{"name": "A", "value": "b"}],
    "prepare.waitResources": {"requests": {"cpu": "20m"}},
    "prepare.image.digest": f"sha256:{'0' * 64}",
    "image.digest": f"sha256:{'0' * 64}",
    "test.image.digest": f"sha256:{'0' * 64}",
    "load.image.digest": f"sha256:{'0' * 64}",
    "test.resources": {"requests": {"cpu": "200m"}},
    "load.env": [{"name": "A", "value": "b"}],
    "autoscaling.authenticationRef": {"name": "prometheus"},
    "autoscaling.triggers": [{"type": "cron", "metadata": {}}],
    "autoscaling.fallback": {"failureThreshold": 3, "replicas": 2},
    "spread.matchLabelKeys": ["pod-template-hash"],
    "monitoring.interval": "30s",
    "monitoring.relabelings": [{"action": "drop"}],
    "monitoring.metricRelabelings": [{"action": "drop"}],
    "tracing.url": "http://other:4318/v1/traces",
    "networkPolicy.clients": [{"namespaceSelector": {}}],
    "networkPolicy.monitoring": [{"podSelector": {}}],
    "networkPolicy.egress": [{"to": [{"namespaceSelector": {}}]}],
    "gateway.image.digest": f"sha256:{'0' * 64}",
    "gateway.pools": ["default"],
    "gateway.arguments": ["--keep-s=60"],
    "gateway.contents.url": "s3://other/a",
    "gateway.volume.size": "30Gi",
    "gateway.clients": [{"namespaceSelector": {}}],
    "gateway.resources": {"requests": {"cpu": "3"}},
    "gateway.workers.resources": {"requests": {"cpu": "3"}},
    "gateway.route.parentRefs": [{"name": "other"}],
    "gateway.service.loadBalancerSourceRanges": ["10.0.0.0/8"],
    "gateway.spread.matchLabelKeys": ["pod-template-hash"],
    "gateway.env": [{"name": "A", "value": "b"}],
    "gateway.volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "gateway.volumeMounts": [{"name": "tmp", "mountPath": "/other"}],
    "gateway.tolerations": [{"key": "own", "operator": "Exists"}],
    "gateway.affinity": {"podAffinity": {}},
    "gatewayApi.parentRefs": [{"name": "other"}],
    "test.arguments": ["ready"],
    "load.pool": "volumes",
    "load.arguments": ["--family", "airimu"],
    "load.resources": {"requests": {"cpu": "3"}},
    "pools": {"one": {}, "two": {"replicas": 2}},
    "apiVersions.podDisruptionBudget": "policy/v1beta1",
    "apiVersions.horizontalPodAutoscaler": "autoscaling/v2beta2",
}
FIXED = {
    "Job": ("template", "selector", "completions", "completionMode"),
    "Deployment": ("selector",),
    "Service": ("clusterIP",),
}
# What may change of a set, whose other fields are fixed.
STATEFUL_SET = {
    "replicas",
    "template",
    "updateStrategy",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
}


def settings(values: Manifest, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of the chart's values with their paths; of free maps and of lists the whole."""
    for name, value in values.items():
        path = f"{above}{name}"
        if isinstance(value, dict) and value and path not in OTHER:
            yield from settings(value, f"{path}.")
        else:
            yield path, value


SETTINGS = dict(settings(yaml.safe_load((CHART / "values.yaml").read_text())))


def allowed(path: str) -> list[Any]:
    """Return the values that the schema names for a setting."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    node: Any = schema
    for name in path.split("."):
        node = node.get("properties", {}).get(name, {})
        while "$ref" in node:
            node = schema["definitions"][node["$ref"].rpartition("/")[2]]
    return list(node.get("enum", []))


def others(path: str) -> list[Any]:
    """Return other values of a setting."""
    value = SETTINGS[path]
    if choices := allowed(path):
        return [choice for choice in choices if choice != value]
    if path in OTHER:
        return [OTHER[path]]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1]
    if isinstance(value, str):
        return [f"{value}x" if value else "other"]
    return [{"other": "value"}]


def changed(values: Manifest, path: str, value: Any) -> Manifest:
    """Return values with one setting changed."""
    found = copy.deepcopy(values)
    *folders, name = path.split(".")
    node = found
    for folder in folders:
        node = node.setdefault(folder, {})
    node[name] = value
    return found


def fixed(manifest: Manifest) -> Any:
    """Return what Kubernetes lets nobody change of an object."""
    spec, kind = manifest.get("spec", {}), manifest["kind"]
    found = {name: spec[name] for name in FIXED.get(kind, ()) if name in spec}
    if kind == "StatefulSet":
        found = {name: value for name, value in spec.items() if name not in STATEFUL_SET}
    elif kind == "PersistentVolumeClaim":
        found = {name: value for name, value in spec.items() if name != "resources"}
    return found, manifest.get("roleRef"), manifest.get("type"), manifest.get("immutable")


def broken(before: list[Manifest], after: list[Manifest]) -> list[str]:
    """Return the objects that keep their kind and name and lose a fixed field."""
    had = {(each["kind"], each["metadata"]["name"]): fixed(each) for each in before}
    return [
        f"{each['kind']} {each['metadata']['name']}"
        for each in after
        if (key := (each["kind"], each["metadata"]["name"])) in had and had[key] != fixed(each)
    ]


def rendered(values: Manifest) -> list[Manifest] | None:
    """Return the manifests of values; None where the chart refuses them."""
    done = template(values)
    if done.returncode:
        return None
    return [manifest for manifest in yaml.load_all(done.stdout, yaml.CSafeLoader) if manifest]


def walked(path: str, shape: str) -> bool:
    """Change a setting in a release of a shape; return whether the shape can have another value of it."""
    changes = [after for value in others(path) if (after := rendered(changed(SHAPES[shape], path, value)))]
    for after in changes:
        assert broken(render(SHAPES[shape]), after) == [], f"{shape}: {path}"
    return bool(changes)


@pytest.mark.parametrize("path", SETTINGS)
def test_setting_can_be_changed_by_an_upgrade(path: str) -> None:
    assert any(walked(path, shape) for shape in SHAPES), path


@pytest.mark.parametrize("shape", ["all pools", "default"])
@pytest.mark.parametrize("key", ["version", "appVersion"])
def test_versions_can_be_changed_by_an_upgrade(tmp_path: Path, shape: str, key: str) -> None:
    later = Path(shutil.copytree(CHART, tmp_path / "slipway"))
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (later / "Chart.yaml").write_text(yaml.safe_dump({**described, key: "9.9.9"}))
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(SHAPES[shape]))
    done = helm("template", "shop", later, "--namespace", "models", "--values", tmp_path / "values.yaml")
    after = [dict(manifest) for manifest in yaml.safe_load_all(done.stdout) if manifest]
    assert "9.9.9" in done.stdout
    assert broken(render(SHAPES[shape]), after) == []


def test_walk_can_fail() -> None:
    """A Job of the same name and other pods is what an upgrade was refused for."""
    (job,) = (each for each in render(JOB) if each["kind"] == "Job")
    other = copy.deepcopy(job)
    other["spec"]["template"]["metadata"]["labels"]["helm.sh/chart"] = "slipway-9.9.9"
    assert broken([job], [other]) == [f"Job {job['metadata']['name']}"]
