"""Trained models: routes that list them, export them and load them into a running Triton."""
