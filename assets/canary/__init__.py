"""Canary. In: a signed package. Out: promoted or rolled back. Why: live traffic has the last word, under guarantee."""
