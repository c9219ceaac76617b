"""What would be better: the space of strategies, evaluated in bulk, and the best of it."""
