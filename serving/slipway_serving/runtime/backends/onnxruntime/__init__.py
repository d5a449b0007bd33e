"""Slipway's backend `onnxruntime`: ONNX Runtime from PyPI behind Triton's Python backend.

It serves the same model repositories as Triton's C++ backend of this name: `session` reads the same
parameters, `signature` completes and checks the config by the same rules, `execution` runs batches of
requests, `sharing` lets several instances use one session, and `model` is the adapter that Triton loads.
"""
