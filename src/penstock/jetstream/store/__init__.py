"""Stored messages: which ones exist, and where their bytes are."""
