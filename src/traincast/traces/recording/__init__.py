"""A trace as tasks with their waits, which a plan can run again."""
