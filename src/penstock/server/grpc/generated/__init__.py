"""What `make proto` makes of protos/: a descriptor set and the types of its messages. Not for editing."""
