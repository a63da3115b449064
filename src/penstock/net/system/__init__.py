"""Requests and commands of the system account."""
