"""Make the schemas in `schemas/` from their public sources; run by hand when a version changes.

A custom resource's definition (CRD) becomes one strict JSON schema: unknown fields are refused, which an API
server would drop without a word. Kubernetes 1.20, which kubernetes-validate has no longer, is cut from its
release 1.20.0 to the kinds of the chart. Descriptions are left out. `schemas/README.md` names the sources.

    python tests/helm/vendor_schemas.py crd FILE.yaml VERSION
    python tests/helm/vendor_schemas.py kubernetes FOLDER_OF_v1.20.0-local-strict
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

SCHEMAS = Path(__file__).parent / "schemas"
OLD_KINDS = (
    "configmap-v1",
    "deployment-apps-v1",
    "horizontalpodautoscaler-autoscaling-v2beta2",
    "ingress-networking-v1",
    "job-batch-v1",
    "networkpolicy-networking-v1",
    "persistentvolumeclaim-v1",
    "pod-v1",
    "poddisruptionbudget-policy-v1beta1",
    "secret-v1",
    "service-v1",
    "serviceaccount-v1",
    "statefulset-apps-v1",
)
NOISE = {"description", "default", "example", "externalDocs"}


def strict(schema: Any, *, closed: bool = True) -> Any:
    """Return an OpenAPI schema as JSON schema that refuses fields that it does not name.

    Alternatives (`anyOf` and the like) add rules to the object around them, so they stay open.
    """
    if isinstance(schema, list):
        return [strict(item, closed=closed) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":  # names of fields, which may be those of keywords
            made[key] = {name: strict(field, closed=closed) for name, field in value.items()}
        elif key not in NOISE and not key.startswith("x-") and key not in {"nullable", "format"}:
            made[key] = strict(value, closed=closed and key not in {"allOf", "anyOf", "oneOf", "not"})
    if closed and "properties" in made and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def from_crd(path: Path, version: str) -> None:
    """Write the schema of one version of a custom resource."""
    definition = yaml.safe_load(path.read_text())["spec"]
    (found,) = (entry for entry in definition["versions"] if entry["name"] == version)
    schema = strict(found["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    write(f"{definition['names']['kind'].lower()}-{definition['group'].partition('.')[0]}-{version}", schema)


def from_kubernetes(folder: Path) -> None:
    """Write what the chart's kinds need of an old Kubernetes."""
    definitions = json.loads((folder / "_definitions.json").read_text())["definitions"]
    kinds = {kind: json.loads((folder / f"{kind}.json").read_text()) for kind in OLD_KINDS}
    needed: dict[str, Any] = {}
    waiting = [json.loads(json.dumps(kinds).replace("_definitions.json#", "#"))]
    while waiting:
        part = waiting.pop()
        for name in references(part) - set(needed):
            needed[name] = bare(json.loads(json.dumps(definitions[name]).replace("_definitions.json#", "#")))
            waiting.append(needed[name])
    made = json.loads(json.dumps(kinds).replace("_definitions.json#", "#"))
    write("kubernetes-1.20", {"kinds": bare(made), "definitions": needed})


def references(part: Any) -> set[str]:
    """Return the names of the definitions that a schema refers to."""
    if isinstance(part, dict):
        own = {str(part["$ref"]).rpartition("/")[2]} if isinstance(part.get("$ref"), str) else set()
        return own.union(*(references(value) for value in part.values()))
    return set().union(*(references(value) for value in part)) if isinstance(part, list) else set()


def bare(part: Any, *, fields: bool = False) -> Any:
    """Return a schema without descriptions; `fields` says that the keys are names of fields."""
    if isinstance(part, list):
        return [bare(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: bare(value, fields=key == "properties" and not fields)
        for key, value in part.items()
        if fields or not (key in NOISE or key.startswith("x-") or key in {"format", "$schema"})
    }


def write(name: str, schema: Any) -> None:
    """Write one schema, smallest form."""
    path = SCHEMAS / f"{name}.json"
    path.write_text(json.dumps(schema, separators=(",", ":"), sort_keys=True) + "\n")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    what, source, *rest = sys.argv[1:]
    from_crd(Path(source), rest[0]) if what == "crd" else from_kubernetes(Path(source))
