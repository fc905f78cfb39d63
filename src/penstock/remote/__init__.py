"""A session over the wire: what `embedded/` is for a shard in this process.

One state machine without I/O (`exchange.py`) and two shells around it: sockets for threads, a
protocol for an event loop. The same over HTTP, in `http_*`.
"""
