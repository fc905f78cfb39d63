"""Tests of `penstock.remote`."""
