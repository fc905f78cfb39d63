"""What the archive pipeline is made of: its manifest, the files, and the ways to write, join, prove and read them."""
