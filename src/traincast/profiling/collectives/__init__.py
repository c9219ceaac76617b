"""Measures collectives between processes, and reads logs of nccl-tests."""
