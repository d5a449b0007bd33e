"""Drive a gateway with LiteLLM's provider hosted_vllm, and print what it saw as JSON: URL, KEY."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# LiteLLM downloads a list of prices unless it is told not to.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

url, key = sys.argv[1:]
litellm.suppress_debug_info = True
address = {"api_base": f"{url}/v1", "api_key": key}
server = {**address, "custom_llm_provider": "hosted_vllm"}


def create(**fields: Any) -> Any:
    """Create a video."""
    return litellm.video_generation(**{"model": "hosted_vllm/wan_t2v", **address, **fields})


def until_done(video: Any) -> Any:
    """Return a video when it has ended."""
    while video.status in ("queued", "in_progress"):
        time.sleep(0.2)
        video = litellm.video_status(video_id=video.id, **server)
    return video


def refusal(call: Callable[[], Any]) -> dict[str, Any]:
    """Return what LiteLLM raised."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  (LiteLLM's errors share no base)
        status = getattr(error, "status_code", None)
        return {"class": type(error).__name__, "status": status, "message": str(error)}
    return {"class": None}


created = create(
    prompt="a red ball grows on sand",
    seconds="1",
    size="64x64",
    extra_body={"num_inference_steps": 4, "seed": 5, "extra_params": {"guidance_scale": 3.0}},
)
video = until_done(created)
content = litellm.video_content(video_id=created.id, **server)
remix = until_done(litellm.video_remix(video_id=created.id, prompt="a blue ring", **server))
listed = litellm.video_list(**server)
print(
    json.dumps(
        {
            "created": created.model_dump(),
            "video": video.model_dump(),
            "bytes": len(content),
            "begins": content[4:8].decode("latin-1"),
            "remix": remix.model_dump(),
            "listed": len(listed["data"] if isinstance(listed, dict) else listed),
            "refusals": {
                "size": refusal(lambda: create(prompt="a", size="big")),
                "steps": refusal(lambda: create(prompt="a", extra_body={"num_inference_steps": "many"})),
                "model": refusal(lambda: create(prompt="a", model="hosted_vllm/sora-2")),
                "key": refusal(lambda: create(prompt="a", api_key="sk-slipway-" + "x" * 43)),
            },
        },
        default=str,
    )
)
