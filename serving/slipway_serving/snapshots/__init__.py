"""A session's state as bytes: put into parts on one server, taken out of them on another."""
