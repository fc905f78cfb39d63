"""Windows: what declares them, and what computes them."""
