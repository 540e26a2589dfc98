"""The demo: a year of real flights replayed as live traffic through the whole loop, in simulated time."""
