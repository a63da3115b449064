"""`penstock doctor`."""
