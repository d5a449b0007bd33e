"""Cancellation of a running request by another request, without a cut of its connection."""
