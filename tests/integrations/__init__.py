"""Frameworks that Penstock works in: the frameworks themselves, not stand-ins."""
