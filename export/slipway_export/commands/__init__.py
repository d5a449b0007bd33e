"""Commands of the exporter: export, verify, plan and checkpoint."""
