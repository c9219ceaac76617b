"""What the scheduler believes about jobs, and forecasts of them."""
