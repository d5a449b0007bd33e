"""Benchmarks behind `slipway bench`: the cost of a model compared with its reference, and its quality."""
