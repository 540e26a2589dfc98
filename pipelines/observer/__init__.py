"""Observer. In: Envoy's access log and copies of bodies. Out: the inference log, metrics, completeness.

Why: gates judge what serving really did, and only when they know how much of it they saw. It stands beside the
gateway, which never waits for it: if it dies, clients do not notice and the loop says NO DATA.
"""
