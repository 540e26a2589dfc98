"""Fallback. In: the champion and its package. Out: a copy with fewer trees in the lite tier. Why: worse beats none."""
