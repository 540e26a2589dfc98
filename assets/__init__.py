"""The floor plan: one room a stage, walked in this order.

snapshot → drift → shadow → retrain → profile → canary (→ fallback, where a spec asks for it)
"""
