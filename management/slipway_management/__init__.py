"""HTTP API for management: list trained models, export them and load them into a running Triton."""
