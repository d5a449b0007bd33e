"""Format of a session's snapshot, and the requests that read and restore one."""
