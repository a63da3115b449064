"""The monitoring endpoints, metrics and the console."""
