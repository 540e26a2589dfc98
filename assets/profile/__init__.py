"""Profile. In: a candidate. Out: a signed package with its configuration. Why: speed is measured, not hoped for."""
