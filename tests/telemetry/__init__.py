"""Tests of `penstock.telemetry`."""
