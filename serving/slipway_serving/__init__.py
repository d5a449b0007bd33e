"""What runs inside Triton, free of Triton: requests, errors, loops, parts, the server's launcher."""

import os

# Since 1.29 ONNX Runtime tells its maker of sessions and models, and keeps a file of that in the user's home,
# unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
