"""Requests to addresses that callers name: pictures to fetch, and webhooks to deliver."""
