"""Networks on tables: recommendation and time series."""
