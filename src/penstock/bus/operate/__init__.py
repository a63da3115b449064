"""Watching a bus: backlog, health, metrics, tracing."""
