"""`penstock consumer`."""
