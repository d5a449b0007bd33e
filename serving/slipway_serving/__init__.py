"""Code of the served models, of their backend, and of the server's launcher."""

import os

# From 1.29 on, ONNX Runtime sends telemetry about sessions and models, and keeps unsent data in the user's
# home, unless this variable is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
