"""Roll-ups: the tables, where they are kept, and the report of them."""
