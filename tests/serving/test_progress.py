import json

from headstart.serving.registry import MAX_POINTS, MAX_RESPONSE_POINTS, read_progress


def step(number, **values):
    return json.dumps(
        {"event": "step", "step": number, "progress": number / 100, "loss": 1.0, "seconds_left": 5, **values}
    )


def write(path, *lines, mode="a"):
    with open(path, mode, encoding="utf-8") as handle:
        handle.write("".join(line + "\n" for line in lines))


def test_a_log_that_is_not_there_yet_is_an_empty_curve(tmp_path):
    assert read_progress(tmp_path / "log.jsonl") == {
        "progress": None, "seconds_left": None, "steps": [], "evaluations": [],
    }  # fmt: skip


def test_new_lines_are_added(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, step(10), json.dumps({"event": "evaluation", "step": 10, "epoch": 1.0, "accuracy": 0.5}))
    assert [point["step"] for point in read_progress(path)["steps"]] == [10]
    write(path, step(20))
    found = read_progress(path)
    assert [point["step"] for point in found["steps"]] == [10, 20]
    assert found["evaluations"] == [{"step": 10, "epoch": 1.0, "values": {"accuracy": 0.5}}]
    assert found["progress"] == 0.2
    assert [point["step"] for point in read_progress(path, after=10)["steps"]] == [20]


def test_an_incomplete_line_is_read_later(tmp_path):
    path, whole = tmp_path / "log.jsonl", step(10) + "\n"
    path.write_text(whole[:20], "utf-8")
    assert read_progress(path)["steps"] == []
    path.write_text(whole, "utf-8")
    assert len(read_progress(path)["steps"]) == 1


def test_invalid_lines_and_nan_are_ignored(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, "{", "[]", "null", '{"event": "step"}', step(10, loss=float("nan")), step(20))
    found = read_progress(path)["steps"]
    assert [point["loss"] for point in found] == [None, 1.0]


def test_a_resume_that_truncates_the_log_resets_the_curve(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, step(10), step(20), step(30))
    read_progress(path)
    write(path, step(10), step(15), mode="w")
    assert [point["step"] for point in read_progress(path)["steps"]] == [10, 15]


def test_a_repeated_step_replaces_the_first_one(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, step(10), step(20))
    read_progress(path)
    write(path, step(20, loss=2.0), step(30))
    assert [(point["step"], point["loss"]) for point in read_progress(path)["steps"]] == [(10, 1), (20, 2), (30, 1)]


def test_a_long_run_is_thinned_but_its_newest_point_stays(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, *(step(number) for number in range(1, 3 * MAX_POINTS)))
    found = [point["step"] for point in read_progress(path)["steps"]]
    assert len(found) <= MAX_RESPONSE_POINTS + 1
    assert found[0] == 1
    assert found[-1] == 3 * MAX_POINTS - 1
    assert found == sorted(set(found))
