"""What a shard does with tasks, beyond what it does with every message: each operation as decide → append → apply."""
