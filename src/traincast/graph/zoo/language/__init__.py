"""Language models: decoders, encoders, translation."""
