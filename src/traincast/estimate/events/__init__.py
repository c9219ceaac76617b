"""Seconds of works that were measured one by one, and of works near them."""
