"""What users may rely on, whichever journal is behind it and whichever protocol is in front of it."""
