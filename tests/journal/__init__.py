"""Tests of `penstock.journal`."""
