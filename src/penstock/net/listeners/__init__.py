"""From an accepted socket to a session: plain, TLS, WebSocket, PROXY header."""
