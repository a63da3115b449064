"""Sharing between accounts: imports, exports, mappings, and the latency of services."""
