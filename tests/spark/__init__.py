"""Tests with a real Spark."""
