"""Drift. In: reference and traffic window. Out: a verdict, named features. Why: retraining is dear, so ask first."""
