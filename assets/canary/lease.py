"""Who drives a rollout: one driver at a time, and none that is dead. The store's compare-and-swap makes it binding."""

from dataclasses import replace
from datetime import datetime, timedelta

from assets.canary.rollout import Rollout


def claim(rollout: Rollout, driver: str, now: datetime) -> Rollout | None:
    """The rollout, leased to `driver` until settings.lease_s from now; None while another driver's lease lives.

    The driver that holds it renews by claiming again. Write the answer by compare-and-swap on what was read before
    acting on it: of two drivers that claim at once, one write is refused. Ended rollouts can be claimed until they
    are closed, for what follows the end has to be done as well.
    """
    if rollout.closed or not (rollout.driver == driver or _free(rollout, now)):
        return None
    return replace(rollout, driver=driver, lease_until=now + timedelta(seconds=rollout.settings.lease_s))


def release(rollout: Rollout, driver: str) -> Rollout:
    """Give the lease back; somebody else's stays."""
    return replace(rollout, driver=None, lease_until=None) if rollout.driver == driver else rollout


def close(rollout: Rollout) -> Rollout:
    """Aliases are set and the record is written: nothing is left to drive. ValueError before the end."""
    if not rollout.ended:
        raise ValueError(f"{rollout.model}: a rollout that is {rollout.phase} can't be closed")
    return replace(rollout, closed=True, driver=None, lease_until=None)


def orphaned(rollout: Rollout, now: datetime) -> bool:
    """Does it need a driver and has none?"""
    return not rollout.closed and _free(rollout, now)


def _free(rollout: Rollout, now: datetime) -> bool:
    return rollout.driver is None or rollout.lease_until is None or rollout.lease_until <= now
