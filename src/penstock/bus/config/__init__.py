"""The settings of the bus, and how they are read."""
