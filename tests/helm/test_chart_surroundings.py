"""What the chart renders around its workloads: security, traces, metrics, ways in, sessions, the test."""

from __future__ import annotations

import base64
import json

import pytest
import yaml
from helm_chart import CHART, Manifest, example, of_kind, only, render, server, server_pod

GPU: Manifest = {"image": {"repository": "slipway/server-gpu"}, "gpu": {"count": 1}}


def test_disruption_budget_lets_one_replica_go_at_a_time() -> None:
    assert only(render(), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_network_policy_lets_in_clients_and_monitoring_and_out_names_only() -> None:
    spec = only(render({"prepare": {"exports": []}}), "NetworkPolicy", "shop-slipway")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    inference, metrics = spec["ingress"]
    assert inference["from"][0] == {"podSelector": {}}
    assert inference["ports"] == [{"port": "http"}, {"port": "grpc"}]
    assert metrics["ports"] == [{"port": "metrics"}]
    assert spec["egress"] == [{"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}]


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://collector:4318/v1/traces", 4318),
        ("https://collector.example.com/v1/traces", 443),
        ("http://collector/v1/traces", 80),
    ],
)
def test_network_policy_lets_traces_out_to_the_collectors_port(url: str, port: int) -> None:
    manifests = render({"tracing": {"url": url}, "prepare": {"exports": []}})
    spec = only(manifests, "NetworkPolicy", "shop-slipway")["spec"]
    assert spec["egress"][1:] == [{"ports": [{"port": port}]}]


def test_service_account_carries_annotations_and_no_token() -> None:
    account = only(render(example("everything")), "ServiceAccount")
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/models"}
    assert account["automountServiceAccountToken"] is False


def test_administration_is_closed_with_a_key_by_default() -> None:
    token = only(render(), "Secret")["data"]["token"]
    assert len(base64.b64decode(token)) == 48
    arguments = server()["args"]
    assert arguments[arguments.index("--model-control") + 1] == "none"
    assert arguments[arguments.index("--control-token-file") + 1] == "/secrets/control/token"
    volumes = {volume["name"]: volume for volume in server_pod()["volumes"]}
    assert volumes["control"]["secret"] == {"secretName": "shop-slipway-control"}


def test_key_is_in_a_file_and_in_no_argument_or_variable() -> None:
    container = server(GPU)
    assert {"name": "control", "mountPath": "/secrets/control", "readOnly": True} in container["volumeMounts"]
    assert "TOKEN" not in str(container.get("env", []))
    assert not any("restricted" in argument for argument in container["args"])


def test_tls_certificate_is_mounted_served_and_asked_of_clients_when_mutual() -> None:
    mutual = server(example("closed"))["args"]
    assert {"--grpc-use-ssl=true", "--grpc-use-ssl-mutual=true", "--grpc-root-cert=/secrets/tls/ca.crt"} <= {
        *mutual
    }
    plain = server({"tls": {"secret": "t"}})
    assert "--grpc-server-cert=/secrets/tls/tls.crt" in plain["args"]
    assert not any("mutual" in argument for argument in plain["args"])
    assert {"name": "tls", "mountPath": "/secrets/tls", "readOnly": True} in plain["volumeMounts"]
    assert not any("ssl" in argument for argument in server()["args"])


def test_traces_go_to_the_collector() -> None:
    given = server({"tracing": {"url": "http://c:4318/v1/traces", "every": 100}})["args"]
    assert given[given.index("--trace-otlp") :][:4] == [
        "--trace-otlp",
        "http://c:4318/v1/traces",
        "--trace-every",
        "100",
    ]
    assert "trace" not in " ".join(server()["args"])


def test_service_monitor_scrapes_the_pods_service_as_the_job_that_rules_name() -> None:
    manifests = render(example("keda"))
    monitor = only(manifests, "ServiceMonitor")
    services = of_kind(manifests, "Service")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    chosen = [service for service in services if wanted <= service["metadata"]["labels"].items()]
    assert [service["metadata"]["name"] for service in chosen] == ["shop-slipway-pods"]
    assert chosen[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "slipway"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in chosen[0]["spec"]["ports"]}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_rules_are_the_projects_own_for_this_release_and_the_dashboard_is_unchanged() -> None:
    manifests = render(example("keda"))
    source = CHART.parents[1] / "observability"
    rule, board = only(manifests, "PrometheusRule"), only(manifests, "ConfigMap")
    own = yaml.safe_load((source / "rules.yml").read_text())
    scope = 'namespace="models",pod=~"(shop-slipway)-[^-]+-[^-]+"'
    for theirs, ours in zip(rule["spec"]["groups"], own["groups"], strict=True):
        for rendered, written in zip(theirs["rules"], ours["rules"], strict=True):
            assert scope in rendered["expr"]
            plain = rendered["expr"].replace(f"{{{scope},}}", "").replace(f"{scope},", "")
            assert {**rendered, "expr": plain} == written
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert json.loads(board["data"]["slipway.json"]) == json.loads((source / "dashboard.json").read_text())
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_ingress_leads_to_serving_only_with_the_patience_of_the_longest_job() -> None:
    http, grpc = (
        only(render(example("ingress")), "Ingress", f"shop-slipway-{protocol}")
        for protocol in ("http", "grpc")
    )
    paths = [[p["path"] for p in i["spec"]["rules"][0]["http"]["paths"]] for i in (http, grpc)]
    assert paths == [["/v2/models", "/v2/health"], ["/inference.GRPCInferenceService"]]
    prefix = "nginx.ingress.kubernetes.io/"
    for ingress, protocol in ((http, "HTTP"), (grpc, "GRPC")):
        annotations = ingress["metadata"]["annotations"]
        assert annotations[f"{prefix}backend-protocol"] == protocol
        assert annotations[f"{prefix}proxy-read-timeout"] == "660"
        assert annotations[f"{prefix}proxy-buffering"] == "off"
        assert annotations["cert-manager.io/cluster-issuer"] == "letsencrypt"
        assert ingress["spec"]["tls"] == [{"hosts": ["models.example.com"], "secretName": "models-tls"}]


def test_ingress_of_another_controller_has_no_annotations_of_nginx() -> None:
    ingress: Manifest = {"enabled": True, "nginx": False, "class": "traefik", "host": "a.b"}
    values = {"ingress": {**ingress, "grpc": {"enabled": False}}}
    assert not only(render(values), "Ingress")["metadata"]["annotations"]


def test_grpc_ingress_of_another_controller_leads_to_a_service_that_says_its_protocol() -> None:
    h2c = {"traefik.ingress.kubernetes.io/service.serversscheme": "h2c"}
    ingress = {"enabled": True, "nginx": False, "host": "a.b", "grpc": {"serviceAnnotations": h2c}}
    manifests = render({"ingress": ingress})
    service = only(manifests, "Service", "shop-slipway-grpc")
    assert service["metadata"]["annotations"] == h2c
    assert [port["port"] for port in service["spec"]["ports"]] == [8001]
    (path,) = only(manifests, "Ingress", "shop-slipway-grpc")["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": "shop-slipway-grpc", "port": {"number": 8001}}
    assert "annotations" not in only(manifests, "Service", "shop-slipway")["metadata"]


def test_ingress_speaks_tls_to_servers_that_do() -> None:
    values = {"ingress": {"enabled": True, "host": "a.b", "tlsSecret": "t"}, "tls": {"secret": "s"}}
    grpc = only(render(values), "Ingress", "shop-slipway-grpc")
    assert grpc["metadata"]["annotations"]["nginx.ingress.kubernetes.io/backend-protocol"] == "GRPCS"


def test_each_pool_has_a_host_name_of_its_own() -> None:
    manifests = render(example("everything"))
    of_pools = [i for i in of_kind(manifests, "Ingress") if "slipway/pool" in i["metadata"]["labels"]]
    hosts = {i["spec"]["rules"][0]["host"] for i in of_pools}
    pools = ("engines", "sessions", "baked", "node", "bucket")
    assert hosts == {f"{pool}.models.example.com" for pool in pools}
    routes = {route["spec"]["hostnames"][0] for route in of_kind(manifests, "GRPCRoute")}
    assert routes == {f"{pool}.gateway.example.com" for pool in pools}


def test_routes_of_the_gateway_lead_to_serving_only() -> None:
    manifests = render(example("gateway-api"))
    (http,) = only(manifests, "HTTPRoute")["spec"]["rules"]
    (grpc,) = only(manifests, "GRPCRoute")["spec"]["rules"]
    assert [match["path"]["value"] for match in http["matches"]] == ["/v2/models", "/v2/health"]
    assert http["timeouts"] == {"request": "660s", "backendRequest": "660s"}
    methods = {match["method"]["method"] for match in grpc["matches"]}
    assert {"ModelInfer", "ModelStreamInfer"} <= methods
    assert not any("Repository" in m or "Shared" in m or "Log" in m or "Trace" in m for m in methods)


def test_sessions_reach_one_replica_by_connection_address_or_header_when_sticky() -> None:
    sticky, free = (
        only(render({"sticky": True}), "Service", "shop-slipway"),
        only(render(), "Service", "shop-slipway"),
    )
    assert sticky["spec"]["sessionAffinity"] == "ClientIP"
    assert "sessionAffinity" not in free["spec"]
    assert "max-connection-age" not in " ".join(server({"sticky": True})["args"])
    assert "--grpc-max-connection-age=30000" in server()["args"]
    hashed = "nginx.ingress.kubernetes.io/upstream-hash-by"
    for ingress in of_kind(render(example("ingress")), "Ingress"):
        assert ingress["metadata"]["annotations"][hashed] == "$http_slipway_session"
    balancer = only(render(example("gateway-api")), "BackendTrafficPolicy")["spec"]["loadBalancer"]
    assert balancer == {
        "type": "ConsistentHash",
        "consistentHash": {"type": "Header", "header": {"name": "slipway-session"}},
    }
    gateway = {"gatewayApi": {"enabled": True, "host": "a.b", "parentRefs": [{"name": "g"}], "envoy": True}}
    assert only(render(gateway), "BackendTrafficPolicy")["spec"]["loadBalancer"] == {"type": "LeastRequest"}


def test_helm_test_generates_through_the_service() -> None:
    pod = only(render(), "Pod")
    (client,) = pod["spec"]["containers"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert client["args"][:2] == ["generate", "wan_t2v"]
    assert client["args"][-2:] == ["--url", "shop-slipway:8001"]
    secure = only(render({"tls": {"secret": "t"}}), "Pod")["spec"]["containers"][0]
    assert secure["args"][-1] == "grpcs://shop-slipway:8001"
    assert secure["env"] == [{"name": "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "value": "/secrets/tls/ca.crt"}]


def test_load_test_has_a_master_that_its_workers_find_and_is_no_server() -> None:
    manifests = render({"load": {"enabled": True, "workers": 5}})
    workers = only(manifests, "Deployment", "shop-slipway-load")
    master = only(manifests, "Job")["spec"]["template"]
    labels = master["metadata"]["labels"].items()
    service = only(manifests, "Service", "shop-slipway-load")
    assert service["spec"]["selector"].items() <= labels
    assert (
        not service["spec"]["selector"].items() <= workers["spec"]["template"]["metadata"]["labels"].items()
    )
    (port,) = master["spec"]["containers"][0]["ports"]
    assert port["containerPort"] == service["spec"]["ports"][0]["port"]
    assert workers["spec"]["replicas"] == 5
    for other in ("Service", "NetworkPolicy", "PodDisruptionBudget"):
        found = only(manifests, other, "shop-slipway")["spec"]
        selector = found.get("podSelector") or found["selector"]
        assert not selector.get("matchLabels", selector).items() <= labels, other


def test_old_clusters_get_the_api_versions_that_they_know() -> None:
    manifests = render(example("old-cluster"))
    assert only(manifests, "PodDisruptionBudget")["apiVersion"] == "policy/v1beta1"
    assert only(manifests, "HorizontalPodAutoscaler")["apiVersion"] == "autoscaling/v2beta2"
