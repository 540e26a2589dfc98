"""The floor plan: one room a stage, walked in this order.

snapshot → drift → shadow → retrain → profile → canary (→ fallback, where a spec asks for it)
"""

import resources  # noqa: F401  # before any library: it says how they are to behave
