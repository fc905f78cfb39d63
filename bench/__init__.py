"""Measurements of Penstock, each beside the raw limit of the machine measured in the same run."""
