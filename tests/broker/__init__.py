"""Tests of `penstock.broker`."""
