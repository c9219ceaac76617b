"""Files of profilers, read and written."""
