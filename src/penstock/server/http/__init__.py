"""HTTP: the hot routes answered by the connection itself, everything else by an ASGI application beside it."""
