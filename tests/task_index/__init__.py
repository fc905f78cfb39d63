"""Tests of `penstock.task_index`."""
