"""The console: what its page shows, as it changes."""
