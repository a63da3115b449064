"""`penstock kv`."""
