"""ONNX graphs: export, dialects, operator sets, rewrites, precision and quantization."""
