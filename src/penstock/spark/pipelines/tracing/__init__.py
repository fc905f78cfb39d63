"""Traces: hops of messages, the journeys that they make up, and their pictures."""
