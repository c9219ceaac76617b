"""What a job draws from its machines: curves of use over time, and the bursts and pauses in them."""
