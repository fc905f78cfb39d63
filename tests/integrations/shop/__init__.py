"""A Django app with tasks."""
