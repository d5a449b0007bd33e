"""What the server itself says of its models during a run: how long requests waited and were worked on.

Taken from Triton's counters, at the beginning and at the end: the one place where the wait of a request that
streams nothing is known apart from its work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from slipway_serving.errors import NotReady

_COUNTS = {
    "nv_inference_request_success_total": "requests",
    "nv_inference_queue_duration_us_total": "queue_us",
    "nv_inference_compute_infer_duration_us_total": "compute_us",
}


@dataclass(frozen=True)
class Queue:
    """What a model did.

    Attributes:
        requests: that it answered, those of other models too.
        queue_s: mean wait of a request, seconds.
        compute_s: mean work on a request, seconds.
    """

    requests: int
    queue_s: float
    compute_s: float


@dataclass(frozen=True)
class Queues:
    """Triton's counters at a moment.

    Attributes:
        counts: requests, microseconds in the queue, microseconds of work, by model.
    """

    counts: Mapping[str, Mapping[str, float]]

    def since(self, before: Queues) -> dict[str, Queue]:
        """Return what each model did since then, of those that did anything."""
        found = {}
        for model, counts in self.counts.items():
            earlier = before.counts.get(model, {})
            more = {name: counts.get(name, 0.0) - earlier.get(name, 0.0) for name in _COUNTS.values()}
            if (requests := more["requests"]) > 0:
                waited_s, worked_s = (more[name] / 1e6 / requests for name in ("queue_us", "compute_us"))
                found[model] = Queue(round(requests), waited_s, worked_s)
        return dict(sorted(found.items()))


def read_queues(metrics: str) -> Queues:
    """Read Triton's counters.

    Args:
        metrics: "HOST:PORT" of the server's metrics endpoint.

    Raises:
        NotReady: they cannot be read.
    """
    try:
        # A proxy of the environment is for the world outside.
        text = httpx.get(f"http://{metrics}/metrics", timeout=5, trust_env=False).raise_for_status().text
        families = list(text_string_to_metric_families(text))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise NotReady(f"load: metrics must be readable at {metrics}, got {error}; try --metrics") from None
    counts: dict[str, dict[str, float]] = {}
    for family in families:
        for sample in family.samples:
            # Triton's counters have no `_total`, as the library gives them.
            name = _COUNTS.get(sample.name) or _COUNTS.get(f"{sample.name}_total")
            if name is not None:
                of_model = counts.setdefault(sample.labels.get("model", ""), {})
                of_model[name] = of_model.get(name, 0.0) + sample.value
    return Queues(counts)
