"""Retrain. In: a snapshot and the recipe. Out: a gated, registered candidate. Why: nothing unproven gets a version."""
