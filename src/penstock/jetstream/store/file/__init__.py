"""A store on disk: segments, their recovery, and their upkeep."""
