"""Vocabulary that clients, exports and servers share: errors, fields, requests, events, sessions' turns."""
