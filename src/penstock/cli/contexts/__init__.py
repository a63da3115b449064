"""`penstock context`."""
