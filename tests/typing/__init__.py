"""Code that is checked for its types, and never run."""
