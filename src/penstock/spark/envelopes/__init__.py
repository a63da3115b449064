"""The envelope of the event bus as columns."""
