"""Triton's gRPC protocol: transports, messages and errors."""
