"""Tests of `penstock.delivery`."""
