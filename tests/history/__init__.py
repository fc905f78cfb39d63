"""Tests of `penstock.history`."""
