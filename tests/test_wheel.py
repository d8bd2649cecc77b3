"""What a wheel would carry stays under the limit of package registries."""

from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "headstart"
LIMIT = 100 * 10**6


def test_a_wheel_stays_under_a_hundred_megabytes():
    """Counted uncompressed: weights of 8 bits hardly shrink."""
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < LIMIT
