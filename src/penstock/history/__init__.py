"""What a data directory holds, read from outside without touching it: by Spark, by SQL, by whoever wants history."""
