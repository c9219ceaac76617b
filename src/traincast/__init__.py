"""Traincast."""
