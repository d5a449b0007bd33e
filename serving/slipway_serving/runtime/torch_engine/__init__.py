"""Components that PyTorch serves in place of ONNX graphs, under the same names and with the same tensors."""
