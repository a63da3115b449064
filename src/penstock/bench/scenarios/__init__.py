"""Scenarios, the servers to measure, and the order of the rounds."""
