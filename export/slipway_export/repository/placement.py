"""Placement of a served model: on which devices and in how many instances it runs, or on which other server.

``slipway export --place NAME=WHERE`` sets the placement of a component. A placement on this server becomes
the instance group of the model's configuration. If the component runs on another server, that server has the
graph. This repository then gets a model with the same name and tensors that forwards requests
(:mod:`slipway_serving.runtime.remote`), so a pipeline does not depend on where its models run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.repository.config import config_text, model_config
from slipway_export.repository.publish import stage_authored
from slipway_export.spec import AuthoredModel, Component, Engine
from slipway_serving.protocol.errors import InvalidRequest, raise_all

FORM = "cpu, gpu, gpu:0,1 or grpc://HOST:PORT, with 2x before it for two instances"
_WHERE = re.compile(r"(?:(\d+)x)?(?:(cpu|gpu)(?::(\d+(?:,\d+)*))?|grpc://([^\s/]+:\d+))")
_REMOTE = "remote"


@dataclass(frozen=True)
class Placement:
    """Placement of one model.

    Args:
        kind: Kind of device, or another server.
        gpus: Numbers of the GPUs; if empty, Triton uses all of them.
        instances: Number of instances on each device, or of connections that may wait for the other server at
            a time.
        server: ``HOST:PORT`` of the other server's gRPC endpoint.
    """

    kind: Literal["cpu", "gpu", "server"]
    gpus: tuple[int, ...] = ()
    instances: int = 1
    server: str = ""

    @classmethod
    def parse(cls, text: str) -> Placement:
        """Read a placement as a user writes it, e.g. ``2xgpu:1``.

        Raises:
            InvalidRequest: The text is not of that form.
        """
        found = _WHERE.fullmatch(text)
        count, kind, gpus, server = found.groups() if found else ("0", "", None, None)
        instances = int(count or 1)
        if instances < 1 or (gpus and kind == "cpu"):
            raise InvalidRequest(f"place must be {FORM}, got {text!r}")
        if server:
            return cls("server", (), instances, server)
        numbers = tuple(int(number) for number in gpus.split(",")) if gpus else ()
        return cls("cpu" if kind == "cpu" else "gpu", numbers, instances)

    @property
    def facts(self) -> dict[str, Any]:
        """Entry of the placement in the manifest."""
        where = {"server": self.server} if self.server else {"device": self.kind}
        return {**where, **({"gpus": list(self.gpus)} if self.gpus else {}), "instances": self.instances}


def parse_placements(texts: tuple[str, ...]) -> dict[str, Placement]:
    """Read the placements of components, ``NAME=WHERE`` each; names may have dashes for underscores.

    Raises:
        InvalidRequest: A text is not of that form, or a component is placed twice.
    """
    placements: dict[str, Placement] = {}
    for text in texts:
        name, equals, where = text.partition("=")
        name = name.replace("-", "_")
        if not name or not equals:
            raise InvalidRequest(f"place must be NAME=WHERE, got {text!r}; try text_encoder=cpu")
        if name in placements:
            raise InvalidRequest(f"place of {name} must be given once, got {text!r} as well")
        placements[name] = Placement.parse(where)
    return placements


def check_placements(placements: Mapping[str, Placement], components: tuple[Component, ...]) -> None:
    """Refuse placements of unknown components, and placements that a component does not support.

    Args:
        placements: Placements, by name of the component.
        components: Components that are exported.

    Raises:
        InvalidRequest: A placement is refused; the message names every such placement.
    """
    known = {component.name: component for component in components}
    problems = []
    for name, placement in placements.items():
        component = known.get(name)
        if component is None:
            problems.append(f"place must name an exported component ({', '.join(known)}), got {name}")
        elif component.graph != "model" and (placement.server or placement.instances > 1):
            problems.append(
                f"place of {name} must be one instance on this server, because the model keeps state between"
                f" requests, got {placement.facts}"
            )
    raise_all("export", problems)


def set_instances(config: Path, placement: Placement) -> None:
    """Write a placement into a model's ``config.pbtxt``."""
    parsed = text_format.Parse(config.read_text(encoding="utf-8"), pb.ModelConfig())
    del parsed.instance_group[:]
    kind = pb.ModelInstanceGroup.KIND_CPU if placement.kind == "cpu" else pb.ModelInstanceGroup.KIND_GPU
    parsed.instance_group.add(count=placement.instances, kind=kind, gpus=placement.gpus)
    config.write_text(config_text(parsed), encoding="utf-8")


def stage_remote(component: Component, name: str, placement: Placement, staged: Path) -> None:
    """Stage the model that forwards a component's requests to another server.

    Args:
        component: Description of the component.
        name: Name of the served model, on both servers.
        placement: Placement on the other server.
        staged: Staging folder.
    """
    folder = stage_authored(AuthoredModel(name, source=_REMOTE), staged)
    path = folder / "config.pbtxt"
    config = text_format.Parse(path.read_text(encoding="utf-8"), pb.ModelConfig())
    tensors = model_config(component, name, Engine.ONNXRUNTIME)
    config.max_batch_size = tensors.max_batch_size
    if tensors.response_cache.enable:
        config.response_cache.enable = True
    for tensor in (*tensors.input, *tensors.output):
        # The other server applies the reshape, as it does for any client.
        tensor.ClearField("reshape")
    config.input.extend(tensors.input)
    config.output.extend(tensors.output)
    config.instance_group[0].count = placement.instances
    config.parameters["server"].string_value = placement.server
    path.write_text(config_text(config), encoding="utf-8")
