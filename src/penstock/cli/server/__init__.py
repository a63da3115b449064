"""`penstock server`."""
