"""Triage: dead letters, what killed them, and what they share."""
