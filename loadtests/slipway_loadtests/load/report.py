"""Report of a load test: lines for the terminal, data as JSON, and a page with tables and charts."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway_loadtests.load.figures import Figures, Spread
from slipway_loadtests.load.plan import Plan, Stage
from slipway_loadtests.load.queues import Queue
from slipway_loadtests.load.summary import ModelSummary, Staged, Summary
from slipway_loadtests.machine import machine_facts

if TYPE_CHECKING:
    from slipway_loadtests.load.saturation import Saturation

_MEASURES = (
    "latency_s", "first_progress_s", "first_frame_s", "step_s", "queue_s", "service_s", "lag_s", "jitter_s",
    "stall_s", "real_time_factor",
)  # fmt: skip
_STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}"
    "td,th{border:1px solid #bbb;padding:.25em .6em;text-align:right}"
    "td:first-child,th:first-child{text-align:left}.broken{color:#a00}img{max-width:100%}pre{overflow:auto}"
)

Queues = Mapping[str, Queue] | None
Rows = Sequence[Sequence[str]]


def lines(summary: Summary, queues: Queues) -> Iterator[str]:
    """Yield the report for a terminal."""
    for found in summary.models.values():
        yield _sentence(found.whole)
        for each in found.stages if len(found.stages) > 1 else ():
            yield "  " + ", ".join(f"{name} {value}" for name, value in _stage_cells(each).items())
        if found.knee is not None:
            yield f"  knee: level {found.knee:g}"
        for text, count in list(found.errors.items())[:5]:
            yield f"  {count} times {text}"
    for model, queue in (queues or {}).items():
        wait_ms, work_ms = 1e3 * queue.queue_s, 1e3 * queue.compute_s
        yield (
            f"server: {model}: {queue.requests} requests, {wait_ms:.1f} ms in the queue,"
            f" {work_ms:.1f} ms of work"
        )
    for text in (*summary.refusals, *summary.broken):
        yield f"broken: {text}"


def write_json(path: Path, plan: Plan, summary: Summary, queues: Queues) -> None:
    """Write the report as JSON."""
    data = {
        "plan": dataclasses.asdict(plan),
        "kept": not (summary.broken or summary.refusals),
        **dataclasses.asdict(summary),
        "server": {model: dataclasses.asdict(queue) for model, queue in (queues or {}).items()},
    }
    _write(path, data)


def write_saturation(path: Path, found: Saturation) -> None:
    """Write the saturation of one model as JSON."""
    _write(path, dataclasses.asdict(found) | {"slower": found.slower})


def _write(path: Path, data: Mapping[str, Any]) -> None:
    facts = {"written": _time(), "machine": machine_facts()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, **data}, indent=1, allow_nan=False), encoding="utf-8")


def read_json(path: Path) -> Summary:
    """Read the figures that :func:`write_json` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    models = {
        model: ModelSummary(
            _figures(found["whole"]),
            tuple(Staged(Stage(**each["stage"]), _figures(each["figures"])) for each in found["stages"]),
            found["knee"],
            found["errors"],
        )
        for model, found in data["models"].items()
    }
    return Summary(models, tuple(data["broken"]), tuple(data["refusals"]))


def _figures(data: Mapping[str, Any]) -> Figures:
    measures = {name: Spread(**spread) for name, spread in data["measures"].items()}
    return Figures(**{**data, "measures": measures})


def write_html(path: Path, plan: Plan, summary: Summary, queues: Queues) -> None:
    """Write the report as a self-contained HTML page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(page(plan, summary, queues)), encoding="utf-8")


def page(plan: Plan, summary: Summary, queues: Queues) -> Iterator[str]:
    """Yield the lines of the page."""
    said = html.escape
    facts = machine_facts()
    yield f"<!doctype html><meta charset=utf-8><title>Load on {said(plan.url)}</title><style>{_STYLE}</style>"
    yield f"<h1>Load on {said(plan.url or 'a server')}</h1>"
    yield (
        f"<p>{said(_time())}; {plan.arrivals} arrivals, {plan.seconds:g} s; load made by"
        f" {said(str(facts['cpu']))}, {facts['cores']} cores, load average"
        f" {facts['load_average_1_min']:g}.</p>"
    )
    for text in (*summary.refusals, *summary.broken):
        yield f"<p class=broken>broken: {said(text)}</p>"
    if plan.slo and not (summary.broken or summary.refusals):
        yield "<p>All objectives were kept.</p>"
    for model, found in summary.models.items():
        yield f"<h2>{said(model)}</h2><p>{said(_sentence(found.whole))}"
        yield "</p>" if found.knee is None else f" The knee is at a level of {found.knee:g}.</p>"
        yield f"<img alt='charts of {said(model)}' src='data:image/png;base64,{_chart(plan, found)}'>"
        stages = [list(_stage_cells(each).values()) for each in found.stages]
        yield from _table(list(_stage_cells(found.stages[0])), stages)
        yield from _table(
            ("measure", "count", "mean", "p50", "p95", "p99", "most"), _measure_rows(found.whole)
        )
        if found.errors:
            yield from _table(
                ("what went wrong", "times"), [(text, str(n)) for text, n in found.errors.items()]
            )
    if queues:
        yield "<h2>What the server says of its models</h2>"
        rows = [
            (model, str(each.requests), f"{1e3 * each.queue_s:.1f}", f"{1e3 * each.compute_s:.1f}")
            for model, each in queues.items()
        ]
        yield from _table(("model", "requests", "in the queue, ms", "of work, ms"), rows)
    yield f"<h2>Plan</h2><pre>{said(json.dumps(dataclasses.asdict(plan), indent=1))}</pre>"


def _table(heads: Sequence[str], rows: Rows) -> Iterator[str]:
    yield "<table><tr>" + "".join(f"<th>{html.escape(head)}</th>" for head in heads) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</table>"


def _stage_cells(each: Staged) -> dict[str, str]:
    figures, latency = each.figures, each.figures.measures.get("latency_s")
    spread = (latency.p50, latency.p95, latency.p99) if latency else (None, None, None)
    return {
        "level": f"{each.stage.level:g}",
        "sent": f"{figures.sent}",
        "answers/s": f"{figures.per_s:.3g}",
        "goodput/s": f"{figures.goodput_per_s:.3g}",
        "rejected": f"{figures.rejected_share:.1%}",
        "failed": f"{figures.failed_share:.1%}",
        **{
            f"{name} s": "-" if value is None else f"{value:.3g}"
            for name, value in zip(("p50", "p95", "p99"), spread, strict=True)
        },
    }


def _measure_rows(figures: Figures) -> Rows:
    return [
        (
            name,
            str(found.count),
            *(f"{value:.4g}" for value in (found.mean, found.p50, found.p95, found.p99, found.most)),
        )
        for name in _MEASURES
        if (found := figures.measures.get(name))
    ]


def _sentence(figures: Figures) -> str:
    ends = ", ".join(f"{count} {name}" for name, count in sorted(figures.ended.items())) or "none"
    return (
        f"{figures.model}: {figures.sent} requests in {figures.seconds:g} s: {ends};"
        f" {figures.per_s:.3g} answers/s, {figures.goodput_per_s:.3g} of them good"
    )


def _chart(plan: Plan, found: ModelSummary) -> str:
    """Draw throughput and latency over the stages; return a PNG as base64 text."""
    from slipway_loadtests.load.chart import draw_load

    drawn = io.BytesIO()
    draw_load(found, "users" if plan.arrivals == "closed" else "offered per second", drawn)
    return base64.b64encode(drawn.getvalue()).decode("ascii")


def _time() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
