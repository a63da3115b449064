"""Streams as archives: out by SNAPSHOT, back by RESTORE."""
