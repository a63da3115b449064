"""Every setting of a server, declared once."""
