"""A picture: the program that config.pbtxt names does the work, the adapter speaks with Triton."""

import triton_python_backend_utils as pb_utils

from slipway_serving.adapter import model_class

TritonPythonModel = model_class(pb_utils)
