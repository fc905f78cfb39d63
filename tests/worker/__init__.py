"""Tests of `penstock.worker`."""
