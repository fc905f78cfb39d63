"""What the replay pipeline is made of: what is selected, how it is pushed, and what a run leaves for the next."""
