"""Tests of penstock.access."""
