"""Tests of `penstock.batch`."""
