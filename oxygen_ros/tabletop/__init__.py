"""A small simulated robot at a table, an expert for it, and the small pi0.5 that learns from it."""
