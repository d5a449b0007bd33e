"""What `make mutants` changes, and by which unit tests each change must be noticed.

A part is some files of the product with the unit tests that are about them. mutmut runs of those tests, for
each mutant, only the ones that reach the changed function.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Files of the product with their tests.

    Attributes:
        files: Patterns of paths, relative to the folders of the packages.
        tests: Names of the files below tests/unit, without `test_` and `.py`.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]


def _export(*modules: str) -> tuple[str, ...]:
    return tuple(f"slipway_export/{module}.py" for module in modules)


PARTS = {
    "diffusion": Part(
        ("slipway_serving/diffusion/*.py",),
        (
            "cached_denoiser",
            "diffusion_schedules",
            "first_block_cache",
            "framepack_sections",
            "prompt",
            "tokenizer",
            "wan_pipeline",
        ),
    ),
    "video": Part(
        ("slipway_serving/video/*.py",),
        ("delivery", "mp4", "video_decode", "video_decoder", "video_tiles", "wan_pipeline"),
    ),
    "snapshots": Part(
        ("slipway_serving/runtime/snapshots/*.py", "slipway_serving/protocol/snapshots/*.py"), ("snapshots",)
    ),
    "sessions": Part(("slipway_serving/runtime/sessions.py",), ("sessions", "snapshots")),
    "adapter": Part(("slipway_serving/runtime/adapter.py",), ("adapter", "adapter_process")),
    "verify": Part(
        _export("verification/*", "sizing/budget"),
        ("budget", "placed_verification", "verify", "verify_steps"),
    ),
    "repository": Part(
        _export("repository/*"),
        (
            "identity",
            "model_config",
            "placement",
            "queues",
            "export_record",
            "repository",
            "resume",
            "resume_interrupted",
        ),
    ),
    "client": Part(
        ("slipway_client/*.py", "slipway_client/grpc/*.py", "slipway_client/http/*.py"),
        (
            "address",
            "cli_generate",
            "cli_listen",
            "cli_ready",
            "client_answers",
            "client_calls",
            "client_hostile",
            "client_limits",
            "client_protocols",
            "client_results",
            "client_retry",
            "connections",
            "latest",
            "pictures",
            "proxies",
            "wakeword_listening",
        ),
    ),
}
