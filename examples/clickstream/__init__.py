"""A clickstream from end to end."""
