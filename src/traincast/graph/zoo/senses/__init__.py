"""Networks that read images, text and sound together."""
