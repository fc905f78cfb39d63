"""Segments at other locations: object storage and shared directories."""
