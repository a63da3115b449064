"""`penstock serve`."""
