"""The connection of a client: one link at a time, and reconnecting."""
