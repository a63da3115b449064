"""`penstock reference`."""
