"""Routes from subjects to subscriptions."""
