"""Engines of TensorRT and TensorRT-RTX: their files, the libraries, and the program that runs an engine."""
