"""The tiny world that several test files serve, exported once for a whole test run."""

from __future__ import annotations

from pathlib import Path

from tiny_exports import checkpoint_once, exported_once

MODEL = "matrix_game_universal"
# What a world is made by; not the graph of whole videos.
_COMPONENTS = ("universal", "image_encoder", "vae_encoder", "vae_decoder")


def exported_world(shared: Path) -> Path:
    """Return the models of a `universal` world. Read only: copy them to change them."""
    checkpoint = checkpoint_once(shared, "matrix_game")
    made, result = exported_once(shared, "matrix_game", str(checkpoint), components=_COMPONENTS)
    assert MODEL in result.models
    return made
