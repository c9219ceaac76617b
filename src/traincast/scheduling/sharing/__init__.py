"""Jobs that share nodes or switches, and slow one another down."""
