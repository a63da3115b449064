"""What the bus runs on."""
