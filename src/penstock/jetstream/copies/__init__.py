"""Mirrors and sources: streams that copy other streams."""
