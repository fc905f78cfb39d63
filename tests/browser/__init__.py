"""A real browser, against a real broker: what pages of others can make it do, and how a person signs in."""
