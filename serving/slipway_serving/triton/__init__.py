"""Launcher of a Triton server: checks, start, supervision, logs, shutdown."""
