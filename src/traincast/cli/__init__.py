"""Who asks: one file per verb. The only place that prints."""
