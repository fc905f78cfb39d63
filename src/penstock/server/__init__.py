"""One thin shell per protocol, and `serve`, which runs them together."""
