"""The files in deploy/, checked and run."""
