"""The wiring: what people start, and what runs by itself."""

import resources  # noqa: F401  # before any library: it says how they are to behave
