"""What lies on the disk: the door to it, journal files, recovery, checkpoints, sealed segments."""
