"""Errors of a failed server start, built from its log."""

from __future__ import annotations

import signal
from pathlib import Path

from slipway_serving.protocol.errors import PROCESS_DIED, NotReady
from slipway_serving.triton import server_log

_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)
_SHOWN_LINES = 5


class PortTaken(NotReady):
    """Another process took a port between our check and Triton's start."""


class ProcessDiedLoading(NotReady):
    """A model's process, or Triton, died while models were loading.

    If a process does not run for a second while it loads, as happens on a busy machine, Triton 2.51 considers
    it dead and frees the memory that both use. The process or Triton itself then dies.
    """


def is_code_missing(log: str) -> bool:
    """Return True if the log says that a Python model has no code; Triton waits for such a model forever."""
    return "Failed to preinitialize Python stub" in log


def server_error(code: int | None, log: str, path: Path) -> NotReady:
    """Return the error for a start in which models failed to load or `tritonserver` ended.

    Args:
        code: Return code of `tritonserver`; None while it runs.
        log: Text of the log since the start.
        path: Path of the log.
    """
    failures = server_log.load_failures(log)
    error: type[NotReady] = NotReady
    if failures:
        if any(PROCESS_DIED.search(reason) for reason in failures.values()):
            error = ProcessDiedLoading
        lines = "".join(f"\n  {model}: {reason}" for model, reason in failures.items())
        return error(f"server: {len(failures)} model(s) failed to load:{lines}\n  log: {path}")
    reason = server_log.fatal_reason(log) or "\n".join(log.splitlines()[-_SHOWN_LINES:])
    if "already in use" in reason:
        error = PortTaken
    elif code in _CRASHES:
        error = ProcessDiedLoading
    return error(f"server: tritonserver ended with code {code}: {reason}\n  log: {path}")


def launch_error(ending: str, log: str, path: Path) -> NotReady:
    """Return the error for a start in which a model's process ended at once, which Triton does not notice.

    Args:
        ending: Description of how the process ended.
        log: Text of the log since the start.
        path: Path of the log.
    """
    loading = ", ".join(server_log.loading_models(log)) or "a model"
    printed = "".join(f"\n  {line}" for line in server_log.printed_lines(log)[-_SHOWN_LINES:])
    return NotReady(
        f"server: a model's process ended at its start ({ending}); still loading: {loading}{printed}"
        f"\n  log: {path}"
    )


def timeout_error(limit_s: float, log: str, path: Path) -> NotReady:
    """Return the error for a start that takes too long.

    Args:
        limit_s: Longest time for all models together to load, in seconds.
        log: Text of the log since the start.
        path: Path of the log.
    """
    waiting = ", ".join(server_log.loading_models(log)) or "none, but the server does not answer"
    return NotReady(f"server: models must load within {limit_s:g} s, still loading: {waiting}; log: {path}")
