"""One minute of the day of a cluster (bench/day.py)."""
import sys

import day
from conftest import testbed


def test_a_minute_of_disturbances_ends_no_job_and_leaves_nothing():
    record = day.Record(sys.stdout)
    with day.DayBed("leafspine:2x2x2", testbed.BIN) as bed:
        day.Day(bed, 1, 1, record).run()
    assert record.violations == []
    assert len(record.jobs) >= len(day.USERS) and {event["kind"] for event in record.events} >= {"controllers", "agents", "management", "links"}
