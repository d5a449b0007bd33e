"""The studio: a web page on top of the gateway's public API."""
