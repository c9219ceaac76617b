"""Which model a row means: language models by name and dimensions, and other networks."""
