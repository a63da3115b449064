"""Topics: how they are declared, how the broker has them, and the difference."""
