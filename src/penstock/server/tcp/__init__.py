"""The TCP protocol of the SDK: batches as they are stored, requests pipelined."""
