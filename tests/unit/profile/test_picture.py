"""The profile's pictures."""

import base64
from datetime import UTC, datetime
from xml.etree import ElementTree

from assets.profile.choice import choose
from assets.profile.picture import figure, scatter
from assets.profile.points import Point
from assets.profile.settings import ProfileSettings

SETTINGS = ProfileSettings(instances=tuple(range(1, 9)), queue_delays_us=(0, 200, 500), p99_latency_ms=6)
POINTS = [
    Point(c.instances, c.max_queue_delay_us, 4, 900 + 300 * i, 1 + i / 3, c.name)
    for i, c in enumerate(SETTINGS.candidates)
]
AGAIN = [POINTS[0], POINTS[-1]]
DETAILS = choose("m", [*POINTS, *AGAIN, *AGAIN], SETTINGS, datetime(2013, 3, 1, tzinfo=UTC), {}).details


def test_the_small_picture_fits_a_page_of_dagster_and_marks_the_chosen_one() -> None:
    drawn = scatter(DETAILS, SETTINGS)
    assert drawn is not None
    assert len(drawn) < 1000
    svg = ElementTree.fromstring(base64.b64decode(drawn.split("base64,")[1].rstrip(")")))
    assert [item.tag.split("}")[1] for item in svg] == ["path", "path", "circle", "circle", "circle"]


def test_nothing_measured_is_nothing_drawn() -> None:
    assert scatter({"points": []}, SETTINGS) is None


def test_the_large_picture_is_a_png() -> None:
    assert figure(DETAILS, SETTINGS).startswith(b"\x89PNG")
