"""Verbs that tell what a job draws from its machines: resources and monitor."""
