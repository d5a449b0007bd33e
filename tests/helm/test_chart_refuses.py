"""Values that the chart refuses, each by a message that names the value and its rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from helm_chart import CHART, EXAMPLES, Manifest, refusal

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
GPU = {"repository": "slipway/server-gpu"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": "two"}, "replicas: Invalid type. Expected: integer, given: string"),
        ({"replica": 2}, "Additional property replica is not allowed"),
        ({"models": {"stor": "claim"}}, "models: Additional property stor is not allowed"),
        ({"image": {"kind": "ngc"}}, "image: Additional property kind is not allowed"),
        ({"models": {"path": "../etc"}}, "models.path: Does not match pattern"),
        ({"models": {"url": "ftp://x"}}, "models.url: Does not match pattern"),
        ({"timing": {"longestJob": 0}}, "timing.longestJob: Must be greater than or equal to 1"),
        ({"timing": {"longestStep": 0}}, "timing.longestStep: Must be greater than or equal to 1"),
        ({"onStop": "pause"}, 'onStop must be one of the following: "finish", "checkpoint"'),
        ({"responseCacheMiB": -1}, "responseCacheMiB: Must be greater than or equal to 0"),
        ({"sharedMemory": {"instances": 0}}, "sharedMemory.instances: Must be greater than or equal to 1"),
        ({"gpu": {"computeCapability": 9}}, "gpu.computeCapability: Invalid type. Expected: string"),
        ({"gpu": {"resource": "gpu"}}, "gpu.resource: Does not match pattern"),
        ({"autoscaling": {"minReplicas": -1}}, "autoscaling.minReplicas: Must be greater than or equal to 0"),
        ({"enabled": "yes"}, "enabled: Invalid type. Expected: boolean"),
        ({"address": "10.0.0.1"}, 'address must be one of the following: "0.0.0.0", "::"'),
        ({"global": {"imageRegistry": 5}}, "global.imageRegistry: Invalid type. Expected: string"),
        ({"image": {"tag": f"sha256:{'0' * 64}"}}, "image.tag: Does not match pattern"),
        ({"image": {"repository": f"a/b@sha256:{'0' * 64}"}}, "image.repository: Does not match pattern"),
        ({"image": {"digest": "sha256:12"}}, "image.digest: Does not match pattern"),
        ({"prepare": {"image": {"digest": "latest"}}}, "prepare.image.digest: Does not match pattern"),
        ({"prepare": {"hubToken": {"secret": "a", "key": "a b"}}}, "prepare.hubToken.key: Does not match"),
        ({"prepare": {"hubToken": {"name": "a"}}}, "prepare.hubToken: Additional property name"),
        ({"prepare": {"keep": 0}}, "prepare.keep: Must be greater than or equal to 1"),
        ({"prepare": {"gpu": 1}}, "prepare.gpu: Invalid type. Expected: boolean"),
        ({"prepare": {"env": ["A=b"]}}, "prepare.env.0: Invalid type. Expected: object"),
        ({"prepare": {"podLabels": {"a": True}}}, "prepare.podLabels.a: Invalid type. Expected: string"),
        ({"prepare": {"podAnnotations": {"a": 1}}}, "prepare.podAnnotations.a: Invalid type"),
        ({"prepare": {"waitResources": {"cpu": 1}}}, "prepare.waitResources: Additional property cpu"),
        ({"volumes": [{"configMap": {}}]}, "volumes.0: name is required"),
        ({"volumeMounts": [{"name": "ca", "mountPath": "etc"}]}, "volumeMounts.0.mountPath: Does not match"),
        ({"initContainers": [{"image": "a"}]}, "initContainers.0: name is required"),
        ({"service": {"type": "ExternalName"}}, "service.type must be one of the following"),
        ({"service": {"annotations": {"a": 1}}}, "service.annotations.a: Invalid type"),
        (
            {"service": {"loadBalancerSourceRanges": "10.0.0.0/8"}},
            "service.loadBalancerSourceRanges: Invalid",
        ),
        ({"ingress": {"grpc": {"annotation": {}}}}, "ingress.grpc: Additional property annotation"),
        ({"ingress": {"http": {"annotations": {"a": 1}}}}, "ingress.http.annotations.a: Invalid type"),
        (
            {"ingress": {"grpc": {"serviceAnnotations": {"a": 1}}}},
            "ingress.grpc.serviceAnnotations.a: Invalid",
        ),
        ({"autoscaling": {"authenticationRef": {"secret": "a"}}}, "authenticationRef: Additional property"),
        ({"autoscaling": {"triggers": [{"metadata": {}}]}}, "autoscaling.triggers.0: type is required"),
        ({"autoscaling": {"fallback": {"replicas": -1}}}, "autoscaling.fallback.replicas: Must be greater"),
        ({"spread": {"matchLabelKeys": "pod-template-hash"}}, "spread.matchLabelKeys: Invalid type"),
        ({"test": {"resources": {"memory": "1Gi"}}}, "test.resources: Additional property memory"),
        ({"test": {"arguments": "ready"}}, "test.arguments: Invalid type. Expected: "),
        ({"load": {"env": [{"value": "1"}]}}, "load.env.0: name is required"),
        ({"podSecurityContext": True}, "podSecurityContext: Invalid type. Expected: object"),
        ({"securityContext": "root"}, "securityContext: Invalid type. Expected: object"),
        ({"extraObjects": [{"kind": "Secret"}]}, "extraObjects.0: apiVersion is required"),
        ({"monitoring": {"namespace": "A B"}}, "monitoring.namespace: Does not match pattern"),
        ({"monitoring": {"interval": "15"}}, "monitoring.interval: Does not match pattern"),
        ({"monitoring": {"relabelings": {"action": "drop"}}}, "monitoring.relabelings: Invalid type"),
        ({"monitoring": {"metricRelabelings": ["a"]}}, "monitoring.metricRelabelings.0: Invalid type"),
        ({"monitoring": {"dashboardLabels": {"a": 1}}}, "monitoring.dashboardLabels.a: Invalid type"),
        ({"monitoring": {"dashboardAnnotations": {"a": 1}}}, "monitoring.dashboardAnnotations.a: Invalid"),
        ({"autoscaling": {"by": "knative"}}, "autoscaling.by must be one of the following"),
        ({"prepare": {"exports": ["wan_t2v; rm -rf /"]}}, "prepare.exports.0: Does not match pattern"),
        ({"prepare": {"exports": ["wan_t2v $(id)"]}}, "prepare.exports.0: Does not match pattern"),
        ({"limits": {"wan_t2v": {"steps": "many"}}}, "limits.wan_t2v.steps: Invalid type"),
        ({"limits": {"wan_t2v": {"frames +": 20}}}, "limits.wan_t2v: "),
        ({"arguments": ["rate-limit"]}, "arguments.0: Does not match pattern"),
        ({"env": [{"name": "THREADS", "value": 1}]}, "env.0.value: Invalid type. Expected: string"),
        ({"env": [{"value": "1"}]}, "env.0: name is required"),
        ({"pools": {"Wan": {}}}, 'Property name of "Wan" does not match'),
        ({"pools": {"wan": {"tracing": {}}}}, "pools.wan: Additional property tracing is not allowed"),
        ({"pools": {"wan": {"replicas": -1}}}, "pools.wan.replicas: Must be greater than or equal to 0"),
        ({"control": {"mode": "poll"}}, 'control.mode must be one of the following: "none", "explicit"'),
        (
            {"apiVersions": {"podDisruptionBudget": "policy/v2"}},
            "apiVersions.podDisruptionBudget must be one of",
        ),
        ({"resources": {"limit": {}}}, "resources: Additional property limit is not allowed"),
    ],
)
def test_schema_refuses_a_value_by_name_and_rule(values: Manifest, said: str) -> None:
    assert said in refusal(values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"models": {"store": "hostPath"}}, "models.hostPath must be a folder of the node"),
        ({"models": {"store": "url"}, "image": GPU, "prepare": {"exports": []}}, "models.url must be given"),
        ({"models": {"store": "image"}}, "prepare.exports must be empty with store image, got 1"),
        (
            {"prepare": {"by": "job"}},
            "models.store must be claim where a job prepares for all pods, got local",
        ),
        (
            {"workload": "StatefulSet", "models": {"store": "claim"}},
            "models.store must be local with a StatefulSet, got claim",
        ),
        (
            {"gpu": {"computeCapability": "9.0"}},
            "gpu.count must be 1 or more with a compute capability, got 0",
        ),
        (
            {"autoscaling": {"by": "hpa", "minReplicas": 5}},
            "autoscaling.minReplicas must be at most maxReplicas, got 5 and 4",
        ),
        (
            {"autoscaling": {"by": "keda"}, "timing": {"longestJob": 7200}},
            "timing.longestJob and autoscaling.stabilization must be at most 3600 with autoscaling, got 7200",
        ),
        (
            {"prepare": {"by": "job"}, "models": {"store": "claim"}, "image": GPU, "gpu": {"count": 1}},
            "prepare.by must be pod with GPUs, got job, whose pod would wait for a GPU",
        ),
        (
            {"autoscaling": {"by": "keda", "minReplicas": 0}},
            "autoscaling.minReplicas must be at least 1 without KEDA and a trigger of your own, got 0",
        ),
        (
            {"autoscaling": {"by": "hpa", "fallback": {"failureThreshold": 3, "replicas": 2}}},
            "autoscaling.by must be keda with triggers, fallback or authenticationRef, got hpa",
        ),
        (
            {"ingress": {"enabled": True, "nginx": False, "host": "a.b"}},
            "ingress.grpc.serviceAnnotations must tell a controller that is not nginx to speak HTTP/2",
        ),
        ({"autoscaling": {"by": "hpa", "inFlight": 0}}, "autoscaling must have a target above 0"),
        ({"rollout": {"maxSurge": 0}}, "rollout.maxSurge or maxUnavailable must be above 0, got 0 and 0"),
        (
            {"resources": {"limits": {"memory": "1Gi"}}, "sharedMemory": {"instances": 64}},
            "must be above the shared memory, which counts towards it, got 1Gi and 1056Mi",
        ),
        (
            {"sticky": True, "ingress": {"enabled": True, "nginx": False, "host": "a.b"}},
            "sticky must be false behind an ingress that is not nginx",
        ),
        (
            {"sticky": True, "gatewayApi": {"enabled": True, "host": "a.b", "parentRefs": [{"name": "g"}]}},
            "sticky must be false behind a gateway without a policy for it",
        ),
        ({"ingress": {"enabled": True, "tlsSecret": "t"}}, "ingress.host must be given"),
        ({"ingress": {"enabled": True, "host": "a.b"}}, "ingress.tlsSecret must be given with nginx"),
        ({"gatewayApi": {"enabled": True}}, "gatewayApi.host and gatewayApi.parentRefs must be given"),
        ({"load": {"enabled": True, "pool": "none"}}, "load.pool must be one of default, got none"),
        ({"tls": {"mutual": True}}, "tls.secret must be given with mutual"),
        ({"fullnameOverride": "n" * 44}, "must have at most 43 characters, got 44; try fullnameOverride"),
    ],
)
def test_combination_is_refused_by_name_with_a_way_out(values: Manifest, said: str) -> None:
    assert said in refusal(values)


def test_all_broken_rules_of_all_pools_come_in_one_message() -> None:
    text = refusal({"pools": {"a": {"models": {"store": "url"}}, "b": {"models": {"store": "hostPath"}}}})
    assert "pool a: models.url must be given" in text
    assert "pool b: models.hostPath must be" in text


def objects(schema: Any, path: str = "") -> Iterator[tuple[str, Manifest]]:
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield path, schema
        for key, value in schema.items():
            yield from objects(value, f"{path}/{key}")


def test_schema_closes_every_object_that_has_fields() -> None:
    found = dict(objects(SCHEMA))
    assert len(found) > 25
    # A parent chart's other global values reach this chart too. The rest are objects of Kubernetes and KEDA.
    free = {"/properties/global", *(f"/definitions/{name}/items" for name in ("volumes", "volumeMounts"))}
    free |= {"/definitions/initContainers/items", "/definitions/autoscaling/properties/triggers/items"}
    assert {path for path, schema in found.items() if schema.get("additionalProperties") is not False} == free


def leaves(values: Any, schema: Manifest, path: str = "") -> Iterator[str]:
    """Yield the fields in which values and schema differ."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    if not isinstance(values, dict) or "properties" not in schema:
        return
    for name in set(values) ^ set(schema["properties"]):
        yield f"{path}/{name}"
    for name in set(values) & set(schema["properties"]):
        yield from leaves(values[name], schema["properties"][name], f"{path}/{name}")


def test_schema_and_values_have_the_same_fields() -> None:
    optional = ("resources/", "Resources/", "authenticationRef/", "fallback/")
    assert [path for path in leaves(VALUES, SCHEMA) if not any(part in path for part in optional)] == []


def test_pools_may_set_what_describes_a_pool_and_nothing_else() -> None:
    template = (CHART / "templates" / "_pools.tpl").read_text()
    (line,) = (line for line in template.splitlines() if ":= pick .Values" in line)
    picked = [word.strip('"') for word in line.partition(".Values ")[2].removesuffix(" }}").split()]
    assert set(picked) == set(SCHEMA["definitions"]["pool"]["properties"])
    text = (CHART / "values.yaml").read_text()
    before = yaml.safe_load(text.partition("\npools:")[0])
    assert set(before) == set(picked), "values.yaml says that the keys above `pools` are a pool's"


def test_values_file_is_short_and_every_line_of_examples_is_used() -> None:
    assert len((CHART / "values.yaml").read_text().splitlines()) < 250
    for path in EXAMPLES:
        assert path.read_text().startswith("# "), f"{path.name} must say what it is for"
