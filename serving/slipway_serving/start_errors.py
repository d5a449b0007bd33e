"""Why a server could not start: errors from what its log says."""

from __future__ import annotations

import signal
from pathlib import Path

from slipway_serving import triton_log
from slipway_serving.errors import PROCESS_DIED, NotReady

_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)
_SHOWN_LINES = 5


class PortTaken(NotReady):
    """Another process took a port between our look and Triton's."""


class DiedLoading(NotReady):
    """A model's process, or Triton, died while models were loaded.

    Triton 2.51 takes a process that does not run for a second while it loads, as happens on a busy machine,
    for dead, and frees the memory that both use: the process dies of that, or Triton itself.
    """


def says_code_is_missing(log: str) -> bool:
    """Return whether a Python model has no code; Triton waits for such a model without an end."""
    return "Failed to preinitialize Python stub" in log


def of_server(code: int | None, log: str, path: Path) -> NotReady:
    """Return the error of a start in which models failed or `tritonserver` ended.

    Args:
        code: Return code of `tritonserver`; None while it runs.
        log: Text of the log since the start.
        path: Place of the log.
    """
    failures = triton_log.load_failures(log)
    error: type[NotReady] = NotReady
    if failures:
        if any(PROCESS_DIED.search(reason) for reason in failures.values()):
            error = DiedLoading
        lines = "".join(f"\n  {model}: {reason}" for model, reason in failures.items())
        return error(f"server: {len(failures)} model(s) failed to load:{lines}\n  log: {path}")
    reason = triton_log.fatal(log) or "\n".join(log.splitlines()[-_SHOWN_LINES:])
    if "already in use" in reason:
        error = PortTaken
    elif code in _CRASHES:
        error = DiedLoading
    return error(f"server: tritonserver ended with code {code}: {reason}\n  log: {path}")


def of_launch(died: str, log: str, path: Path) -> NotReady:
    """Return the error of a start in which a model's process ended at once, which Triton does not notice.

    Args:
        died: How the process ended, in words.
        log: Text of the log since the start.
        path: Place of the log.
    """
    loading = ", ".join(triton_log.still_loading(log)) or "a model"
    said = "".join(f"\n  {line}" for line in triton_log.printed(log)[-_SHOWN_LINES:])
    return NotReady(
        f"server: the process of a model must start, but {died}; still loading: {loading}{said}"
        f"\n  log: {path}"
    )


def of_time(limit_s: float, log: str, path: Path) -> NotReady:
    """Return the error of a start that takes too long.

    Args:
        limit_s: Seconds that all models together have to load.
        log: Text of the log since the start.
        path: Place of the log.
    """
    waiting = ", ".join(triton_log.still_loading(log)) or "none, but it does not answer"
    return NotReady(f"server: models must load within {limit_s:g} s, still loading: {waiting}; log: {path}")
