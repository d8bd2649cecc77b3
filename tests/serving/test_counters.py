import re

from headstart.serving.counters import SECONDS, Counter, Counters, Gauge, Histogram

LINE = re.compile(
    r'^[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\[n"\\])*"(,[a-z_]+="(?:[^"\\\n]|\\[n"\\])*")*\})? [0-9.e+-]+$'
)


def test_a_counter_adds_up_by_label():
    counter = Counter("things_total", "Things.")
    counter.add(kind="a")
    counter.add(2, kind="a")
    counter.add(kind="b")
    assert counter.lines() == ['things_total{kind="a"} 3', 'things_total{kind="b"} 1']
    assert counter.value(kind="a") == 3


def test_the_buckets_of_a_histogram_hold_all_below_them():
    found = Histogram("seconds", "Seconds.", (1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        found.add(value)
    assert found.lines() == [
        'seconds_bucket{le="1"} 2',
        'seconds_bucket{le="2"} 3',
        'seconds_bucket{le="+Inf"} 4',
        "seconds_sum 12",
        "seconds_count 4",
    ]


def test_every_line_can_be_read_whatever_a_run_is_called():
    counters = Counters()
    counters.texts.add(run='a "run"\n\\ <script>')
    counters.seconds.add(0.003, endpoint="/v1/classify")
    counters.gauges.append(Gauge("depth", "Depth.", lambda: {(("run", "x"),): 1.5}))
    for line in counters.text().splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or LINE.match(line), line
    assert len(SECONDS) == len(set(SECONDS))
