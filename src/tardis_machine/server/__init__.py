"""The server: HTTP on a port, WebSocket on the next, and the class that holds them together."""
