"""The directories of streams: kept, checked, repaired, removed."""
