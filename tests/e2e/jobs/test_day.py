"""The day in the life of a cluster (bench/day.py), in a minute."""
import sys

import day
from conftest import testbed


def test_in_a_minute_of_all_that_happens_no_job_ends_and_nothing_is_left_behind():
    record = day.Record(sys.stdout)
    with day.DayBed("leafspine:2x2x2", testbed.BIN) as bed:
        day.Day(bed, 1, 1, record).run()
    assert record.violations == []
    assert len(record.jobs) >= len(day.USERS) and {event["kind"] for event in record.events} >= {"controllers", "agents", "management", "links"}
