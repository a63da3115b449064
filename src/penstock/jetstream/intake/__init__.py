"""From a published message to a stored one."""
