"""Durable jobs: their data, their table, the order in which they start, and news of their changes."""
