"""What is learned from measurements: datasets, splits, and the models fitted to them."""
