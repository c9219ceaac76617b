"""Seconds of collectives and transfers: laws of algorithms, and curves learned from measurements."""
