"""Drive a gateway with the unmodified OpenAI client, and print what it saw as JSON.

The arguments are URL, KEY, LIMITED_KEY and FILE. LIMITED_KEY may create one video a day; FILE gets a video.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

warnings.simplefilter("ignore", DeprecationWarning)
url, key, limited_key, file = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=120)
stranger = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-slipway-" + "x" * 43, timeout=120)
limited = openai.OpenAI(base_url=f"{url}/v1", api_key=limited_key, timeout=120)
videos = client.videos


def refusal(call: Callable[[], Any]) -> dict[str, Any]:
    """Return what the client raised."""
    try:
        call()
    except openai.APIStatusError as error:
        return {
            "class": type(error).__name__, "status": error.status_code, "code": error.code,
            "param": error.param, "type": error.type, "message": error.message,
        }  # fmt: skip
    return {"class": None}


def whole_life() -> dict[str, Any]:
    """Create a video, poll it, download its files and vary it."""
    created = videos.create(
        prompt="a red ball grows on sand", seconds="2", size="64x64",
        extra_body={"num_inference_steps": 4, "seed": 5},
    )  # fmt: skip
    polled = videos.poll(created.id)
    videos.download_content(created.id).write_to_file(file)
    remixed = videos.remix(created.id, prompt="a blue ring falls on snow")
    return {
        "created": created.model_dump(),
        "poll_header": videos.with_raw_response.retrieve(created.id).headers.get("openai-poll-after-ms"),
        "polled": polled.model_dump(),
        "bytes": Path(file).stat().st_size,
        "thumbnail": videos.download_content(created.id, variant="thumbnail").read()[8:12].decode("latin-1"),
        "spritesheet": videos.download_content(created.id, variant="spritesheet").read()[:2].hex(),
        "remix": videos.poll(remixed.id).model_dump(),
    }


def fields_in_every_form() -> dict[str, Any]:
    """Give the same fields flat, nested, and as JSON text; a repeated request is the same video."""
    fields: dict[str, Any] = {"num_inference_steps": 1, "seed": 6, "num_frames": 5}
    forms = [fields, {"extra_params": fields}, {"extra_body": fields}, {"extra_params": json.dumps(fields)}]
    made = [videos.create(prompt="a star", size="32x32", extra_body=form) for form in forms]
    again = videos.create(prompt="a star", size="32x32", extra_headers={"idempotency-key": "another"})
    return {"videos": [videos.poll(video.id).model_dump() for video in made], "again": again.id}


def stopped() -> dict[str, Any]:
    """Stop a video after a step, look at its draft, and resume it."""
    fields = {"num_inference_steps": 4, "num_frames": 5, "stop_after_step": 2}
    job = videos.create_and_poll(prompt="a draft", size="32x32", extra_body=fields)
    early = refusal(lambda: videos.download_content(job.id))
    draft = videos.download_content(job.id, variant="draft").read()  # type: ignore[arg-type]
    client.post(f"/videos/{job.id}/resume", cast_to=object, body={})
    return {
        "paused": job.model_dump(),
        "draft": draft[4:8].decode("latin-1"),
        "early": early,
        "resumed": videos.poll(job.id).model_dump(),
    }


def failed() -> dict[str, Any]:
    """Let a video fail by its time limit."""
    job = videos.create_and_poll(prompt="late", size="32x32", extra_body={"timeout_s": 0.001})
    return {"job": job.model_dump(), "content": refusal(lambda: videos.download_content(job.id))}


def listed() -> dict[str, Any]:
    """List all videos by pages of one, in both orders."""
    newest = [video.id for video in videos.list(limit=1)]
    oldest = [video.id for video in videos.list(limit=2, order="asc")]
    return {"newest": newest, "oldest": oldest, "after": videos.list(limit=100, after=newest[0]).data[0].id}


def refusals() -> dict[str, dict[str, Any]]:
    """Delete a video, and send what must be refused."""
    gone = videos.create(prompt="deleted", size="32x32", extra_body={"num_frames": 5, "steps": 1})
    deleted = videos.delete(gone.id)
    limited.videos.create(prompt="first", size="32x32", extra_body={"num_frames": 5, "steps": 1})
    other = next(iter(videos.list(limit=1))).id

    def wrong(**fields: Any) -> dict[str, Any]:
        return refusal(lambda: videos.create(**{"prompt": "a", **fields}))

    return {
        "deleted": deleted.model_dump(),
        "size": wrong(size="1280x720"),
        "seconds": wrong(seconds="90"),
        "steps": wrong(extra_body={"steps": "many"}),
        "boolean": wrong(extra_body={"seed": True}),
        "unknown": wrong(extra_body={"promt": "a"}),
        "nested": wrong(extra_body={"extra_body": {"fps": -1}}),
        "picture": wrong(input_reference=("a.png", b"none", "image/png")),
        "model": wrong(model="sora-2"),
        "gone": refusal(lambda: videos.retrieve(gone.id)),
        "gone_remix": refusal(lambda: videos.remix(gone.id, prompt="a")),
        "gone_delete": refusal(lambda: videos.delete(gone.id)),
        "variant": refusal(
            lambda: videos.download_content(other, variant="audio")  # type: ignore[arg-type]
        ),
        "limit": refusal(lambda: videos.list(limit=1000)),
        "key": refusal(stranger.videos.list),
        "others": refusal(lambda: limited.videos.retrieve(other)),
        "daily": refusal(lambda: limited.videos.create(prompt="second", size="32x32")),
    }


print(
    json.dumps(
        {
            "version": openai.__version__,
            "life": whole_life(),
            "forms": fields_in_every_form(),
            "stopped": stopped(),
            "failed": failed(),
            "listed": listed(),
            "refusals": refusals(),
        }
    )
)
