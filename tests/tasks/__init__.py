"""Tests of `penstock.tasks`."""
