import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstart.data.debian import find_packages, package_files, package_version
from headstart.errors import DataError
from tests.debian_worlds import ar_of, deb_of

FILES = {"usr/share/a.txt": b"first", "usr/share/empty": b"", "usr/b.bin": bytes(range(256))}


def written(folder, content, name="toy_1.0_all.deb"):
    path = folder / name
    path.write_bytes(content)
    return path


def read_or_error(path):
    try:
        return dict(package_files(path)), package_version(path)
    except DataError as error:
        return error


@pytest.mark.parametrize("packing", ["", "gz", "xz", "bz2"])
def test_a_package_is_read_without_being_unpacked(tmp_path, packing):
    path = written(tmp_path, deb_of(FILES, "4:7.4.7-1+deb12u14", packing))
    assert read_or_error(path) == (FILES, "4:7.4.7-1+deb12u14")
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def zstd(raw):
    return subprocess.run(["zstd", "-q", "-c"], input=raw, capture_output=True, check=True).stdout


@pytest.mark.skipif(not (shutil.which("zstd") and shutil.which("dpkg-deb")), reason="needs zstd and dpkg-deb")
def test_what_the_standard_library_cannot_unpack_dpkg_does(tmp_path):
    assert read_or_error(written(tmp_path, deb_of(FILES, "2", "", zstd, ".zst"))) == (FILES, "2")


def test_without_dpkg_such_a_package_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = read_or_error(written(tmp_path, deb_of(FILES, "2", "", bytes, ".zst")))
    assert "needs dpkg-deb" in str(found)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive at all",
        ar_of({}),
        ar_of({"debian-binary": b"2.0\n", "data.tar.xz": b"nonsense"}),
        deb_of(FILES)[:-500],
        deb_of(FILES)[:100],
        deb_of(FILES).replace(b"`\n", b"??"),
        ar_of({"control.tar": b"", "data.tar": b""}),
    ],
    ids=["empty", "text", "bare", "nonsense", "cut", "short", "header", "hollow"],
)
def test_a_broken_package_is_one_sentence(tmp_path, content):
    found = read_or_error(written(tmp_path, content))
    assert isinstance(found, DataError)
    assert "toy_1.0_all.deb" in str(found)
    assert found.hint


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2000), st.binary(min_size=1, max_size=8), st.sampled_from(["", "xz", "gz"]))
def test_a_damaged_package_gives_no_traceback(tmp_path, place, junk, packing):
    whole = deb_of(FILES, packing=packing)
    place %= len(whole)
    found = read_or_error(written(tmp_path, whole[:place] + junk + whole[place + len(junk) :]))
    assert not isinstance(found, DataError) or found.hint


def test_the_newest_of_a_package_s_files_is_taken(tmp_path):
    for version in ("7.4.7", "7.10.1", "7.4.12"):
        written(tmp_path, b"", f"toy_{version}_all.deb")
    written(tmp_path, b"", "toy-more_9_all.deb")
    assert find_packages(["toy"], tmp_path)["toy"].name == "toy_7.10.1_all.deb"
    with pytest.raises(DataError, match=r"holds no file other_VERSION.deb"):
        find_packages(["other"], tmp_path)
