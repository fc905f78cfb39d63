"""Tests of `penstock.postgres`, on a server that the tests start."""
