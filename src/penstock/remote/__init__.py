"""A session over the wire: what `embedded/` is for a shard in this process.

One state machine without I/O (`exchange.py`) and two shells around it: sockets for threads, a
protocol for an event loop. Over HTTP the same frames travel in requests and responses: `http.py`, `http_pool.py`.
"""
