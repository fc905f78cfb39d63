"""Tests of `penstock.shard`."""
