"""Error figures: forecasts compared with tables of measurements."""
