"""What a profiler saw: traces read, replayed as plans, changed, compared and learned from."""
