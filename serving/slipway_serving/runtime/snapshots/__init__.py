"""Snapshots of sessions: one server writes a session's state as parts, and another restores it from them."""
