"""The monitoring endpoints, metrics and the dashboard."""
