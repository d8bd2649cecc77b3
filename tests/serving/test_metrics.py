import re

from headstart.serving.registry import BATCH_SIZES, SECONDS, Metrics

LINE = re.compile(r'^[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\[n"\\])*"(,[a-z_]+="(?:[^"\\\n]|\\[n"\\])*")*\})? [0-9.e+-]+$')


def exposition(metrics):
    from prometheus_client import generate_latest

    return generate_latest(metrics.registry).decode()


def test_a_counter_adds_up_by_label():
    metrics = Metrics()
    metrics.texts.labels("a").inc()
    metrics.texts.labels("a").inc(2)
    metrics.texts.labels("b").inc()
    lines = exposition(metrics).splitlines()
    assert 'headstart_texts_total{run="a"} 3.0' in lines
    assert 'headstart_texts_total{run="b"} 1.0' in lines


def test_the_buckets_of_a_histogram_hold_all_below_them():
    metrics = Metrics()
    for value in (1, 2, 1.5, 900):
        metrics.batch_texts.labels("a").observe(value)
    lines = exposition(metrics).splitlines()
    for edge, count in (("1.0", 1), ("2.0", 3), ("256.0", 3), ("+Inf", 4)):
        assert f'headstart_batch_texts_bucket{{le="{edge}",run="a"}} {count}.0' in lines
    assert 'headstart_batch_texts_sum{run="a"} 904.5' in lines
    assert 'headstart_batch_texts_count{run="a"} 4.0' in lines


def test_every_line_can_be_read_whatever_a_run_is_called():
    metrics = Metrics()
    metrics.texts.labels('a "run"\n\\ <script>').inc()
    metrics.seconds.labels("/v1/classify").observe(0.003)
    metrics.streams.labels("x").set_function(lambda: 1.5)
    for line in exposition(metrics).splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or LINE.match(line), line
    for edges in (SECONDS, BATCH_SIZES):
        assert len(edges) == len(set(edges))
