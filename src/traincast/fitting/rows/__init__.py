"""Rows of tables of measured operators, read into columns."""
