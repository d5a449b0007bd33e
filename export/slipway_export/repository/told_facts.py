"""Summary of a model's manifest in its configuration, so that the server tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_serving.protocol.export_facts import PARITY_PARAMETER, ExportFacts, ParitySummary

_TOLD = re.compile(rf'(key: "{PARITY_PARAMETER}"\s+value \{{\s+string_value: ")[^"]*')


def write_facts(config: Path, facts: Mapping[str, Any]) -> None:
    """Add the summary of an export to the configuration of a model with graphs.

    Args:
        config: The model's `config.pbtxt`.
        facts: Facts of the model's manifest: engine, precision by graph, parity rows and points left out.
    """
    by_graph: Mapping[str, str] = facts["precision"]
    distinct = sorted(set(by_graph.values()))
    precision = " ".join(f"{graph}={name}" for graph, name in by_graph.items())
    told = ExportFacts(
        engine=facts["engine"],
        precision=distinct[0] if len(distinct) == 1 else precision,
        parity=parity_summary(facts["parity"], len(facts["not_verified"])),
    )
    parameters = {name: pb.ModelParameter(string_value=text) for name, text in told.parameters.items()}
    added = text_format.MessageToString(pb.ModelConfig(parameters=parameters))
    config.write_text(f"{config.read_text(encoding='utf-8').rstrip()}\n{added}", encoding="utf-8")


def with_parity(text: str, rows: Sequence[Mapping[str, Any]], left_out: int) -> str:
    """Return a configuration whose summary of the parity report is renewed.

    Args:
        text: Text of a model's `config.pbtxt`; one without a summary stays as it is.
        rows: Parity rows, as the manifest has them.
        left_out: Number of points that were not verified.
    """
    summary = parity_summary(rows, left_out)
    return text if summary is None else _TOLD.sub(lambda told: told[1] + summary.text, text)


def parity_summary(rows: Sequence[Mapping[str, Any]], left_out: int) -> ParitySummary | None:
    """Return the worst differences of a manifest's parity rows; None without rows.

    Args:
        rows: Parity rows, as the manifest has them.
        left_out: Number of points that were not verified.
    """
    if not rows:
        return None
    return ParitySummary(
        points=len(rows),
        left_out=left_out,
        max_abs=max(row["max_abs"] for row in rows),
        relative_l2=max(row["relative_l2"] for row in rows),
        cosine=min(row["cosine"] for row in rows),
        of_bound=max(_share(row) for row in rows),
    )


def _share(row: Mapping[str, Any]) -> float:
    """Return the largest difference of a row as a share of its bound."""
    bound = row["bound"]
    pairs = [
        (row["max_abs"], bound["max_abs"]),
        (row["relative_l2"], bound["relative_l2"]),
        (1 - row["cosine"], 1 - bound["cosine"]),
    ]
    return max((max(0.0, value) / allowed for value, allowed in pairs if allowed > 0), default=0.0)
