"""Rows of fine-tuning runs: what was tuned, how long its texts are, and what a row leaves out."""
