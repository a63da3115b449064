"""The engines the bus runs on."""
