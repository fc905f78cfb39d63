"""Penstock in other people's frameworks. Each part imports its framework, and nothing else imports the parts."""
