"""Speed and accuracy studies: each prints a table and compares with a baseline in the same run."""
