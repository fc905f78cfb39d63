"""Tests of `penstock.server`."""
