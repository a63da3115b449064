"""Watching the server: reports, an hour of history, and what needs attention."""
