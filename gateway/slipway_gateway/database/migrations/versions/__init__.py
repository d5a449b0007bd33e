"""Revisions of the gateway's tables."""
