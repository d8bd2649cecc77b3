"""What a wheel would carry stays under the limit of package registries."""

from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "headstart"
LIMIT = 100 * 10**6


def test_a_wheel_stays_under_a_hundred_megabytes():
    """Counted uncompressed: weights of 8 bits hardly shrink."""
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < LIMIT


def test_every_base_that_is_shipped_is_whole_and_within_its_limit():
    from headstart.shipped import check_base, shipped_bases

    limits = {"small": 24 * 2**20, "tiny": 8 * 2**20}
    for name, path in shipped_bases().items():
        if path.parent == SOURCE / "bases":
            check_base(path)
            size = sum(file.stat().st_size for file in path.iterdir())
            assert size <= limits[name.rpartition("-")[2]], name
