"""Snapshot. In: a feature set, an instant. Out: rows as known then. Why: training and serving can't disagree."""
