"""What-if changes of a recording."""
