"""Tests of `penstock.wire`."""
