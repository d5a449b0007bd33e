"""Engines: what each one builds, and how its models are configured."""
