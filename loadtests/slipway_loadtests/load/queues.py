"""Queue time and compute time of each model during a run, as the server reports them.

They come from Triton's counters at the beginning and at the end of the run. Only there is the wait of a
request that streams nothing known apart from its compute time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from slipway_serving.protocol.errors import NotReady

_COUNTS = {
    "nv_inference_request_success_total": "requests",
    "nv_inference_queue_duration_us_total": "queue_us",
    "nv_inference_compute_infer_duration_us_total": "compute_us",
}


@dataclass(frozen=True)
class Queue:
    """Requests, queue time and compute time of a model.

    Attributes:
        requests: Number of requests that the model answered, those of other clients included.
        queue_s: Mean queue time of a request, in seconds.
        compute_s: Mean compute time of a request, in seconds.
    """

    requests: int
    queue_s: float
    compute_s: float


@dataclass(frozen=True)
class Queues:
    """Triton's counters at one time.

    Attributes:
        counts: Number of requests, microseconds in the queue and microseconds of compute, by model.
    """

    counts: Mapping[str, Mapping[str, float]]

    def since(self, before: Queues) -> dict[str, Queue]:
        """Return the figures of each model since an earlier reading, for models that answered requests."""
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
        metrics: Metrics endpoint "HOST:PORT" of the server.

    Raises:
        NotReady: The counters cannot be read.
    """
    try:
        # Reach the metrics endpoint directly: a proxy from the environment is for external addresses.
        text = httpx.get(f"http://{metrics}/metrics", timeout=5, trust_env=False).raise_for_status().text
        families = list(text_string_to_metric_families(text))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise NotReady(f"load: metrics must be readable at {metrics}, got {error}; try --metrics") from None
    counts: dict[str, dict[str, float]] = {}
    for family in families:
        for sample in family.samples:
            # The parsed name of a Triton counter may lack `_total`.
            name = _COUNTS.get(sample.name) or _COUNTS.get(f"{sample.name}_total")
            if name is not None:
                of_model = counts.setdefault(sample.labels.get("model", ""), {})
                of_model[name] = of_model.get(name, 0.0) + sample.value
    return Queues(counts)
