"""The verb fit: learn times and resource use from measurements."""
