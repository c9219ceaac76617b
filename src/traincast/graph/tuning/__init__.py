"""Fine-tuning as a transform of a captured graph: adapters, frozen parameters, quantised weights."""
