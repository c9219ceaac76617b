"""The verb schedule: replay a job log on a cluster."""
