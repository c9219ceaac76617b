"""Samples what a running command draws from its machine."""
