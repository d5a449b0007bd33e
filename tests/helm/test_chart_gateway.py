"""What the chart renders for the gateway: its workloads, their ways in and out, the database, and scaling."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from helm_chart import CHART, Manifest, breaches, example, needs, of_kind, only, pod_specs, refusal, render

from slipway_cli.root import app

SMALL: Manifest = {"gateway": {"enabled": True}}
SHARED: Manifest = {"database": {"secret": "db"}, "contents": {"url": "s3://videos/a", "secret": "store"}}
SPLIT: Manifest = {"gateway": {"enabled": True, "role": "split", **SHARED}}
NAME, WORKER = "shop-slipway-gateway", "shop-slipway-gateway-worker"
HOOK = "helm.sh/hook"


def with_gateway(base: Manifest = SMALL, **changes: Any) -> Manifest:
    return {**base, "gateway": {**base["gateway"], **changes}}


def pod_of(values: Manifest | Path, name: str = NAME) -> Manifest:
    return next(pod_specs(only(render(values), "Deployment", name)))


def container_of(values: Manifest | Path, name: str = NAME) -> Manifest:
    (container,) = pod_of(values, name)["containers"]
    return dict(container)


def added(values: Manifest) -> set[tuple[str, str]]:
    """Return the kinds and names that values add to the defaults."""
    before = {(m["kind"], m["metadata"]["name"]) for m in render()}
    return {(m["kind"], m["metadata"]["name"]) for m in render(values)} - before


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Parse flags of `slipway gateway` as its image's entry point begins, without running it."""
    group: Any = typer.main.get_command(app).get_command(None, "gateway")  # type: ignore[attr-defined, arg-type]
    return dict(group.make_context("gateway", ["--host", "0.0.0.0", *arguments]).params)


def test_small_gateway_is_one_pod_with_a_volume_and_no_other_service_is_needed() -> None:
    found = added(SMALL)
    own = {(kind, NAME) for kind in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy")}
    assert found > own
    assert {kind for kind, _ in found - own} == {"PersistentVolumeClaim", "Pod"}
    (claim,) = (name for kind, name in found if kind == "PersistentVolumeClaim")
    deployment = only(render(SMALL), "Deployment", NAME)["spec"]
    assert deployment["replicas"] == 1
    assert deployment["strategy"] == {"type": "Recreate"}
    pod = pod_of(SMALL)
    assert {"name": "data", "persistentVolumeClaim": {"claimName": claim}} in pod["volumes"]
    (container,) = pod["containers"]
    # The working folder of the image, in which the database and the videos are by default.
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    assert "--role" not in container["args"] and "env" not in container


def test_gateway_is_off_by_default() -> None:
    assert "gateway" not in json.dumps([m["metadata"]["name"] for m in render()])


def test_api_and_workers_are_two_workloads_of_one_image_without_a_volume_when_split() -> None:
    manifests = render(SPLIT)
    api, worker = container_of(SPLIT), container_of(SPLIT, WORKER)
    assert api["image"] == worker["image"]
    for container, role in ((api, "api"), (worker, "worker")):
        assert container["args"][:2] == ["--role", role]
        assert container["args"][2:4] == ["--triton", "shop-slipway-pods:8001"]
        assert {"name": "data", "mountPath": "/data"} not in container["volumeMounts"]
        source = {"secretKeyRef": {"name": "db", "key": "url"}}
        assert container["env"] == [{"name": "SLIPWAY_GATEWAY_DATABASE", "valueFrom": source}]
        assert container["envFrom"] == [{"secretRef": {"name": "store"}}]
        assert container["args"][container["args"].index("--contents") + 1] == "s3://videos/a"
    assert not of_kind(manifests, "PersistentVolumeClaim")
    for name in (NAME, WORKER):
        strategy = only(manifests, "Deployment", name)["spec"]["strategy"]
        assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize(
    "values", [SMALL, SPLIT, example("everything")], ids=["small", "split", "everything"]
)
def test_arguments_of_the_gateway_are_flags_of_slipway_gateway(values: Manifest | Path) -> None:
    for manifest in of_kind(render(values), "Deployment"):
        component = manifest["metadata"]["labels"].get("app.kubernetes.io/component", "")
        if component.startswith("gateway"):
            (container,) = next(pod_specs(manifest))["containers"]
            given = parsed(container["args"])
            assert given["triton"] and given["exit_timeout_s"] >= 60
            assert given["max_body_mb"] == 64


def test_further_arguments_and_the_address_reach_the_gateway() -> None:
    values = with_gateway(arguments=["--max-waiting=50", "--quota-gb=5", "--allow-origin=https://a.example"])
    given = parsed(container_of({**values, "address": "::"})["args"])
    assert (given["max_waiting"], given["quota_gb"], given["host"]) == (50, 5.0, "::")
    assert given["allow_origin"] == ["https://a.example"]


def test_gateway_knows_the_replicas_of_its_pools_by_address_and_by_tls_when_they_have_it() -> None:
    pools = {"a": {}, "b": {}, "c": {}}
    arguments = container_of({**SMALL, "pools": pools})["args"]
    assert arguments[:6] == [
        word for pool in "abc" for word in ("--triton", f"shop-slipway-{pool}-pods:8001")
    ]
    some = {**with_gateway(pools=["b"]), "pools": pools, "tls": {"secret": "certificates"}}
    container = container_of(some)
    assert container["args"][:4] == ["--triton", "grpcs://shop-slipway-b-pods:8001", "--tls", "/secrets/tls"]
    assert {"name": "tls", "mountPath": "/secrets/tls", "readOnly": True} in container["volumeMounts"]
    headless = only(render(some), "Service", "shop-slipway-b-pods")["spec"]
    assert headless["clusterIP"] == "None" and 8001 in [port["port"] for port in headless["ports"]]


def test_probes_ask_the_process_for_life_and_the_database_for_traffic() -> None:
    for name in (NAME, WORKER):
        container = container_of(SPLIT, name)
        (port,) = container["ports"]
        assert port == {"name": "http", "containerPort": 8080}
        probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
        assert {kind: probe["httpGet"] for kind, probe in probes.items()} == {
            "startup": {"path": "/healthz", "port": "http"},
            "liveness": {"path": "/healthz", "port": "http"},
            "readiness": {"path": "/readyz", "port": "http"},
        }


@pytest.mark.parametrize(("exits", "step"), [(30, 60), (120, 60), (1, 900)])
def test_grace_period_covers_requests_and_the_step_of_a_video_that_stops(exits: int, step: int) -> None:
    values = {**with_gateway(SPLIT, exitTimeout=exits), "timing": {"longestStep": step, "preStop": 7}}
    api, worker = pod_of(values), pod_of(values, WORKER)
    for pod in (api, worker):
        exit_s = parsed(pod["containers"][0]["args"])["exit_timeout_s"]
        assert exit_s >= max(exits, step)
        assert pod["terminationGracePeriodSeconds"] > 7 + 2 * exit_s
    assert api["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1] == "sleep 7"
    assert "lifecycle" not in worker["containers"][0], "nobody calls a worker"


def test_database_is_migrated_by_a_hook_before_anything_changes_and_never_patched() -> None:
    assert not [m for m in of_kind(render(SMALL), "Job") if "migrate" in m["metadata"]["name"]]
    job = only(render(SPLIT), "Job")
    assert job["metadata"]["annotations"] == {
        HOOK: "pre-install,pre-upgrade",
        f"{HOOK}-weight": "0",
        f"{HOOK}-delete-policy": "before-hook-creation,hook-succeeded",
    }
    (pod,) = pod_specs(job)
    (container,) = pod["containers"]
    assert container["command"] == ["slipway", "gateway", "migrate"]
    assert container["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "db", "key": "url"}
    assert container["image"] == container_of(SPLIT)["image"]
    # The release's own account and policies are not there yet.
    assert pod["serviceAccountName"] == "default" and pod["automountServiceAccountToken"] is False
    policy = only(render(SPLIT), "NetworkPolicy", "shop-slipway-migrate")
    assert policy["metadata"]["annotations"][HOOK] == "pre-install,pre-upgrade"
    assert int(policy["metadata"]["annotations"][f"{HOOK}-weight"]) < 0
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= (
        job["spec"]["template"]["metadata"]["labels"].items()
    )
    assert [{"port": 5432}] in [rule["ports"] for rule in policy["spec"]["egress"]]


def test_migration_has_another_name_when_its_pods_are_others() -> None:
    def name(**changes: Any) -> str:
        return str(only(render(with_gateway(SPLIT, **changes)), "Job")["metadata"]["name"])

    others = [name(image={"tag": "2"}), name(database={"secret": "other"}), name(nodeSelector={"a": "b"})]
    assert len({name(), *others}) == 4
    assert name() == name(replicas=3)
    longest = {**SPLIT, "fullnameOverride": "n" * 43}
    assert max(len(m["metadata"]["name"]) for m in render(longest)) <= 63


def test_policies_lead_from_callers_to_the_api_and_from_both_to_servers_database_and_contents() -> None:
    clients = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}]
    manifests = render(with_gateway(SPLIT, clients=clients))
    api, worker = (only(manifests, "NetworkPolicy", name)["spec"] for name in (NAME, WORKER))
    assert clients[0] in api["ingress"][0]["from"] and clients[0] not in worker["ingress"][0]["from"]
    assert worker["ingress"] == [{"from": [{"namespaceSelector": {}}], "ports": [{"port": "http"}]}]
    for spec, component in ((api, "gateway"), (worker, "gateway-worker")):
        assert spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component
        ports = [rule["ports"] for rule in spec["egress"]]
        assert [{"port": 5432}] in ports and [{"port": 443}] in ports
        assert [{"port": 8001}, {"port": 8002}] in ports
        # What callers may name is at public addresses only.
        (public,) = (rule for rule in spec["egress"] if rule["ports"] == [{"port": 80}, {"port": 443}])
        v4, v6 = (peer["ipBlock"] for peer in public["to"])
        assert {"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} <= set(v4["except"])
        assert "fc00::/7" in v6["except"]
    server = only(manifests, "NetworkPolicy", "shop-slipway")["spec"]["ingress"]
    for rule in server:
        (values,) = (
            peer["podSelector"]["matchExpressions"][0]["values"]
            for peer in rule["from"]
            if "matchExpressions" in peer.get("podSelector", {})
        )
        assert {"gateway", "gateway-worker"} <= set(values)
    closed = only(render(with_gateway(SPLIT, outbound=False)), "NetworkPolicy", WORKER)["spec"]["egress"]
    assert len(closed) == len(worker["egress"]) - 1


def test_policy_of_a_small_gateway_leads_to_no_database_and_to_no_object_store() -> None:
    spec = only(render(with_gateway(outbound=False)), "NetworkPolicy", NAME)["spec"]
    assert [port["port"] for rule in spec["egress"] for port in rule["ports"]] == [53, 53, 8001, 8002]


def test_servers_admit_nobody_but_the_gateway_when_there_are_no_other_clients() -> None:
    manifests = render(example("gateway"))
    inference = only(manifests, "NetworkPolicy", "shop-slipway")["spec"]["ingress"][0]["from"]
    (own,) = inference
    assert "gateway" in own["podSelector"]["matchExpressions"][0]["values"]


def test_ingress_keeps_sockets_open_and_passes_streams_and_bodies_unbuffered() -> None:
    ingress = only(render(example("gateway")), "Ingress", NAME)
    prefix = "nginx.ingress.kubernetes.io/"
    annotations = ingress["metadata"]["annotations"]
    assert annotations[f"{prefix}proxy-read-timeout"] == annotations[f"{prefix}proxy-send-timeout"] == "3600"
    assert annotations[f"{prefix}proxy-body-size"] == "64m"
    assert annotations[f"{prefix}proxy-buffering"] == annotations[f"{prefix}proxy-request-buffering"] == "off"
    assert annotations["cert-manager.io/cluster-issuer"] == "letsencrypt"
    (rule,) = ingress["spec"]["rules"]
    paths = {path["path"] for path in rule["http"]["paths"]}
    assert {"/v1", "/docs", "/openapi.json"} <= paths
    # Metrics need no key, so nothing from outside leads to them.
    assert not paths & {"/", "/metrics"}
    assert {path["backend"]["service"]["name"] for path in rule["http"]["paths"]} == {NAME}
    other = {"enabled": True, "nginx": False, "class": "traefik", "host": "a.b"}
    assert not only(render(with_gateway(ingress=other)), "Ingress")["metadata"]["annotations"]


def test_route_has_no_timeout_and_the_policy_of_envoy_keeps_silent_sockets() -> None:
    route = {"enabled": True, "host": "a.b", "parentRefs": [{"name": "public"}], "envoy": True}
    manifests = render(with_gateway(route=route, socketTimeout=900))
    (rule,) = only(manifests, "HTTPRoute")["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    assert rule["backendRefs"] == [{"name": NAME, "port": 8080}]
    assert "/metrics" not in [match["path"]["value"] for match in rule["matches"]]
    policy = only(manifests, "BackendTrafficPolicy")["spec"]
    assert policy["timeout"]["http"] == {"requestTimeout": "0s", "streamIdleTimeout": "900s"}
    assert not of_kind(render(with_gateway(route={**route, "envoy": False})), "BackendTrafficPolicy")


def test_service_brings_a_caller_back_to_its_pod() -> None:
    service = only(render(SPLIT), "Service", NAME)["spec"]
    assert service["sessionAffinity"] == "ClientIP"
    (port,) = service["ports"]
    assert (port["port"], port["targetPort"]) == (8080, "http")
    assert service["selector"]["app.kubernetes.io/component"] == "gateway"


def test_service_monitor_scrapes_both_roles_as_the_job_that_rules_name() -> None:
    manifests = render({**SPLIT, "monitoring": {"serviceMonitor": True}})
    monitor = only(manifests, "ServiceMonitor", NAME)["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    chosen = [
        s["metadata"]["name"]
        for s in of_kind(manifests, "Service")
        if wanted <= s["metadata"]["labels"].items()
    ]
    assert sorted(chosen) == [NAME, WORKER]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] == "http"
    assert endpoint["relabelings"][0] == {"targetLabel": "job", "replacement": "slipway-gateway"}
    # Servers have a monitor of their own, which gateways are no part of.
    servers = only(manifests, "ServiceMonitor", "shop-slipway")["spec"]["selector"]["matchLabels"].items()
    for name in (NAME, WORKER):
        assert not servers <= only(manifests, "Service", name)["metadata"]["labels"].items()


def test_rules_are_of_the_gateways_pods_too_when_there_is_one() -> None:
    def scope(values: Manifest) -> str:
        groups = only(render({**values, "monitoring": {"rules": True}}), "PrometheusRule")["spec"]["groups"]
        return str(groups[0]["rules"][0]["expr"])

    assert 'pod=~"(shop-slipway)-[^-]+-[^-]+"' in scope({})
    assert f'pod=~"(shop-slipway|{NAME}|{WORKER})-[^-]+-[^-]+"' in scope(SPLIT)


def test_pool_scales_from_none_on_the_jobs_of_its_models() -> None:
    autoscaling = {"by": "keda", "minReplicas": 0, "inFlight": 0, "jobs": 2, "jobModels": "wan_t2v"}
    manifests = render({**SMALL, "autoscaling": autoscaling})
    scaled = only(manifests, "ScaledObject", "shop-slipway")
    assert scaled["spec"]["minReplicaCount"] == 0
    # The last replica goes no earlier than others would.
    assert scaled["spec"]["cooldownPeriod"] == 600
    (trigger,) = scaled["spec"]["triggers"]
    assert (trigger["name"], trigger["metricType"], trigger["metadata"]["threshold"]) == (
        "jobs",
        "AverageValue",
        "2",
    )
    assert 'model=~"wan_t2v"' in trigger["metadata"]["query"]
    assert not breaches(scaled, "1.31")


def test_workers_scale_on_all_jobs_and_an_upgrade_does_not_undo_it() -> None:
    autoscaling = {"enabled": True, "minReplicas": 0, "maxReplicas": 6, "jobs": 8}
    manifests = render(with_gateway(SPLIT, workers={"autoscaling": autoscaling}))
    scaled = only(manifests, "ScaledObject", WORKER)["spec"]
    assert scaled["scaleTargetRef"]["name"] == WORKER
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (0, 6)
    assert scaled["triggers"][0]["metadata"]["threshold"] == "8"
    assert "replicas" not in only(manifests, "Deployment", WORKER)["spec"]
    assert only(manifests, "Deployment", NAME)["spec"]["replicas"] == 1
    assert only(render(SPLIT), "Deployment", WORKER)["spec"]["replicas"] == 1


def gauge(name: str, pod: str, model: str, service: str = NAME) -> str:
    return (
        f'slipway_gateway_jobs_{name}{{namespace="models",service="{service}",pod="{pod}",model="{model}"}}'
    )


@pytest.mark.parametrize(
    ("series", "models", "jobs"),
    [
        # Each pod tells the number of the whole database, so two pods do not make it twice as large.
        ({gauge("waiting", "a", "video"): 3, gauge("waiting", "b", "video"): 3}, "", 3),
        ({gauge("waiting", "a", "video"): 3, gauge("running", "a", "video"): 2}, "", 5),
        ({gauge("running", "a", "video"): 2}, "", 2),
        ({gauge("waiting", "a", "video"): 3, gauge("waiting", "a", "other"): 4}, "", 7),
        ({gauge("waiting", "a", "video"): 3, gauge("waiting", "a", "other"): 4}, "video|more", 3),
        ({gauge("waiting", "a", "video"): 3, gauge("waiting", "x", "video", "theirs"): 9}, "", 3),
    ],
)
def test_query_counts_each_job_once(tmp_path: Path, series: dict[str, int], models: str, jobs: int) -> None:
    if not shutil.which("promtool"):
        needs("promtool", "Debian's package prometheus brings it")
    autoscaling = {"by": "keda", "inFlight": 0, "jobs": 1, "jobModels": models}
    scaled = only(render({**SMALL, "autoscaling": autoscaling}), "ScaledObject")
    expected = {
        "expr": scaled["spec"]["triggers"][0]["metadata"]["query"],
        "eval_time": "1m",
        "exp_samples": [{"labels": "{}", "value": jobs}],
    }
    given = [{"series": name, "values": f"{value}x8"} for name, value in series.items()]
    case = {"interval": "15s", "input_series": given, "promql_expr_test": [expected]}
    (tmp_path / "none.yml").write_text("groups: []\n")
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["none.yml"], "tests": [case]}))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_settings_of_placement_and_additions_reach_every_pod_of_the_gateway() -> None:
    own: dict[str, Any] = {
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "own", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClass": "high",
        "env": [{"name": "PGSSLROOTCERT", "value": "/ca/ca.crt"}],
        "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "volumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": True}],
        "podLabels": {"team": "video"},
        "podAnnotations": {"note": "x"},
        "image": {"digest": f"sha256:{'0' * 64}"},
    }
    manifests = render(with_gateway(SPLIT, **own))
    workloads = [
        only(manifests, "Deployment", NAME),
        only(manifests, "Deployment", WORKER),
        only(manifests, "Job"),
    ]
    for workload in workloads:
        template = workload["spec"]["template"]
        pod = template["spec"]
        (container,) = pod["containers"]
        assert pod["nodeSelector"] == own["nodeSelector"] and pod["tolerations"] == own["tolerations"]
        assert own["env"][0] in container["env"] and container["image"].endswith("0" * 64)
        assert own["volumes"][0] in pod["volumes"] and own["volumeMounts"][0] in container["volumeMounts"]
        assert template["metadata"]["labels"]["team"] == "video"
        assert template["metadata"]["annotations"] == {"note": "x"}
        if workload["kind"] == "Deployment":
            assert (pod["affinity"], pod["priorityClassName"]) == (own["affinity"], "high")
            hosts, zones = pod["topologySpreadConstraints"]
            labels = template["metadata"]["labels"].items()
            assert hosts["labelSelector"]["matchLabels"].items() <= labels
            assert (hosts["topologyKey"], zones["whenUnsatisfiable"]) == (
                "kubernetes.io/hostname",
                "ScheduleAnyway",
            )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            with_gateway(replicas=2),
            "gateway.database.secret must be given with role split or more than one replica",
        ),
        (with_gateway(role="split"), "SQLite serves one process; try role all and replicas 1"),
        (
            with_gateway(replicas=2, database={"secret": "db"}),
            "gateway.contents.url must be given with role split or more than one replica, got none",
        ),
        (
            with_gateway(workers={"autoscaling": {"enabled": True}}),
            "gateway.workers.autoscaling.enabled must be false with role all",
        ),
        (
            with_gateway(SPLIT, workers={"autoscaling": {"minReplicas": 9}}),
            "gateway.workers.autoscaling.minReplicas must be at most maxReplicas, got 9 and 4",
        ),
        (with_gateway(pools=["wan"]), "gateway.pools must be of default, got wan"),
        ({**SMALL, "pools": {"gateway": {}}}, "pools must not have the name of the gateway's own workloads"),
        (with_gateway(ingress={"enabled": True}), "gateway.ingress.host must be given"),
        (
            with_gateway(route={"enabled": True}),
            "gateway.route.host and gateway.route.parentRefs must be given",
        ),
        ({"autoscaling": {"by": "keda", "jobs": 1}}, "autoscaling.jobs must be 0 without KEDA and a gateway"),
        ({**SMALL, "autoscaling": {"by": "hpa", "jobs": 1}}, "autoscaling.jobs must be 0 without KEDA"),
        ({"gateway": {"enabled": True, "host": "a.b"}}, "gateway: Additional property host is not allowed"),
        ({"gateway": {"role": "api"}}, 'gateway.role must be one of the following: "all", "split"'),
        ({"gateway": {"contents": {"url": "/data"}}}, "gateway.contents.url: Does not match pattern"),
        ({"gateway": {"database": {"url": "postgresql://a"}}}, "gateway.database: Additional property url"),
    ],
)
def test_wrong_gateway_is_refused_by_name_with_a_way_out(values: Manifest, said: str) -> None:
    assert said in refusal(values)


def test_no_secret_is_in_an_argument_or_a_plain_variable() -> None:
    for name in (NAME, WORKER):
        container = container_of(SPLIT, name)
        assert not any("postgres" in argument for argument in container["args"])
        assert all("valueFrom" in variable for variable in container["env"])
    text = yaml.safe_load((CHART / "values.yaml").read_text())["gateway"]["database"]
    assert set(text) == {"secret", "key", "port"}, "a URL with a password belongs into a secret"


def test_helm_test_asks_the_api_whether_it_takes_requests() -> None:
    pod = only(render(SMALL), "Pod", f"{NAME}-test")
    assert pod["metadata"]["annotations"][HOOK] == "test"
    (container,) = pod["spec"]["containers"]
    assert f"http://{NAME}:8080/readyz" in container["args"][0]
    compile(container["args"][0], "test", "exec")
    assert container["command"] == ["python", "-c"]
