"""Penstock and Spark: every queue is a table, live and past, and pipelines between queues are Spark jobs."""
