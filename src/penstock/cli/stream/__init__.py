"""`penstock stream`."""
