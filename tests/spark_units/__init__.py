"""Tests of `penstock.spark` that need no Spark session."""
