"""Options that name a running server, and the callback that makes it load placed models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer.models import OptionInfo

from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from slipway_export.run import Publish


def triton_option() -> OptionInfo:
    """Return the option that names a running server."""
    option: OptionInfo = typer.Option(
        "--triton",
        help="Running server of the repository, which then loads the placed models.",
        metavar="HOST:HTTP_PORT",
    )
    return option


def control_token_option() -> OptionInfo:
    """Return the option for a running server's control token."""
    option: OptionInfo = typer.Option(
        "--control-token-file", help="File with the token that the server requires to load models."
    )
    return option


def publisher(triton: str | None, control_token_file: Path | None, repository: Path | None) -> Publish:
    """Return the callback that makes a running server load placed models; it does nothing without a server.

    Raises:
        InvalidRequest: The address or the token is invalid, or an option lacks the one that it requires.
    """
    from slipway_serving.triton.control import ModelControl, read_token

    if triton is None:
        if control_token_file is not None:
            raise InvalidRequest(f"control-token-file requires --triton, got {control_token_file} without it")
        return lambda _: None
    if repository is None:
        raise InvalidRequest(f"triton requires --repository, got {triton} without it")
    token = read_token(control_token_file) if control_token_file else None
    return partial(ModelControl(triton, token).sync, repository)
