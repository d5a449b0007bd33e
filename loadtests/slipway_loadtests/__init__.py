"""Benchmarks and load tests against a running Slipway server."""
