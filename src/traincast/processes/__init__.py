"""Processes that run together: started, watched, waited for, and cleaned up after. Profiling and testbed share it."""
