"""The processes that put load on a server, and the work of each client."""
