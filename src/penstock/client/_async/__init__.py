"""The asyncio API, written by hand. `_sync` is generated from it."""
