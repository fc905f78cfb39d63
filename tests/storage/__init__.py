"""Tests of `penstock.storage`."""
