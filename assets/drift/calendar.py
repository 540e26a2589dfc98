"""Tags of the calendar: a block on a holiday or in a promotion is compared with its like, not with ordinary days."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

DAY = timedelta(days=1)
FORMS = "'2013-12-25', '12-25' (each year), '2013-12-24/2013-12-26' (days, both counted), '2013-03-08T18/2013-03-09T06'"


@dataclass(frozen=True, slots=True)
class When:
    """[start, end) on the clocks of one place. yearly: `start` is of the leap year 2000 and returns each year."""

    start: datetime
    end: datetime
    yearly: bool = False

    @classmethod
    def parse(cls, text: str) -> "When":
        """One entry of a spec's calendar. ValueError names the entry and the forms that are read.

        >>> When.parse("2013-12-24/2013-12-26").end.isoformat()
        '2013-12-27T00:00:00'
        """
        try:
            if re.fullmatch(r"\d\d-\d\d", text):
                start = datetime.fromisoformat(f"2000-{text}")
                return cls(start, start + DAY, yearly=True)
            first, _, last = text.partition("/")
            start, end = datetime.fromisoformat(first), datetime.fromisoformat(last or first)
        except ValueError as error:
            raise ValueError(f"{text!r} is no date: write {FORMS}") from error
        end += DAY if "T" not in (last or first) else timedelta(0)
        if start.tzinfo or end.tzinfo or end <= start:
            raise ValueError(f"{text!r} must end after it starts, in times of calendar_zone: write {FORMS}")
        return cls(start, end)

    def spans(self, near: datetime, zone: ZoneInfo) -> Iterator[tuple[datetime, datetime]]:
        """[start, end) in UTC, of a yearly one those about `near`. The day a clock changes has 23 or 25 hours."""
        if not self.yearly:
            yield _instant(self.start, zone), _instant(self.end, zone)
            return
        for year in (near.year - 1, near.year, near.year + 1):
            leap = self.start.month == 2 and self.start.day == 29
            if not leap or (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)):
                start = self.start.replace(year=year)
                yield _instant(start, zone), _instant(start + DAY, zone)


def _instant(local: datetime, zone: ZoneInfo) -> datetime:
    # A local time that a change of the clock skips or repeats is read as before the change.
    return local.replace(tzinfo=zone).astimezone(UTC)


def tag_of(calendar: Mapping[str, Sequence[str]], zone: str, start: datetime, length: timedelta) -> str:
    """The first tag whose days cover half of the block [start, start + length), or lie in it by half; '' without one.

    >>> new_year = {"holiday": ["01-01"]}
    >>> tag_of(new_year, "America/New_York", datetime(2013, 1, 1, tzinfo=UTC), DAY)  # UTC's day has 19 of its hours
    'holiday'
    >>> tag_of(new_year, "America/New_York", datetime(2013, 1, 2, tzinfo=UTC), DAY)
    ''
    """
    if not calendar:
        return ""
    place, end = ZoneInfo(zone), start + length
    for tag, entries in calendar.items():
        for entry in entries:
            for first, last in When.parse(entry).spans(start, place):
                common = min(end, last) - max(start, first)
                if common > timedelta(0) and common >= min(length, last - first) / 2:
                    return tag
    return ""
