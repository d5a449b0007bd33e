"""Options that name a running server, and the callback that tells it to load what was placed."""

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
        help="A running server of the repository, told to load what is placed.",
        metavar="HOST:HTTP_PORT",
    )
    return option


def control_token_option() -> OptionInfo:
    """Return the option for a running server's control token."""
    option: OptionInfo = typer.Option(
        "--control-token-file", help="File with the token that the server wants for loading models."
    )
    return option


def publisher(triton: str | None, control_token_file: Path | None, repository: Path | None) -> Publish:
    """Return what tells a running server of placed models; nothing is told where none is named.

    Raises:
        InvalidRequest: the address or the token is not as it must be.
    """
    from slipway_serving.triton.control import ModelControl, read_token

    if triton is None:
        if control_token_file is not None:
            raise InvalidRequest(
                f"control-token-file must be given with --triton only, got {control_token_file}"
            )
        return lambda _: None
    if repository is None:
        raise InvalidRequest(f"triton must be given with --repository only, got {triton}")
    token = read_token(control_token_file) if control_token_file else None
    return partial(ModelControl(triton, token).sync, repository)
