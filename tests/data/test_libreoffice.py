"""The set built from tiny packages made here; apt is a script of ours, and nothing is fetched."""

import io
import json
import shutil
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.config import DataConfig
from headstart.data.audit import audit_parallel
from headstart.data.datasets import SPLITS, split_of
from headstart.data.libreoffice import align, fetch, find_packages, package_files, paragraphs
from headstart.data.parallel import load_parallel
from headstart.data.text_io import text_hash
from headstart.errors import DataError, HeadstartError
from tests.helpers.debian_packages import ar_of, deb_of, page, tar_of, write_help

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")

SWITCH = (
    'Press <span class="switchinline"><span hidden="true" id="MAC1" class="MAC"><span class="keycode">Command</span>'
    '</span><span hidden="true" id="default1"><span class="keycode">Ctrl</span></span></span>+A'
)
NAMED = '<span class="switchinline"><span hidden class="WIN">one</span><span hidden class="MAC">two</span></span> way'
ENGLISH = {
    "swriter/a.html": page(
        '<h1 id="hd_1" dir="auto"><a name="x"></a>Moving &amp; Copying</h1>',
        '<p id="par_1">First\n  line<br>and &lt;more&gt;&nbsp;text.</p>',
        f'<p id="par_2" class="paragraph">{SWITCH}.</p>',
        '<p id="par_3">Normal</p>',
        '<p id="par_4">12.5 %</p>',
        '<p id="par_5" class="code">Sub Main</p>',
        '<p id="par_6">Only here</p>',
        "<p>without an id</p>",
        '<p id="par_7"></p>',
        '<p id="par_8">twice one</p><p id="par_8">twice two</p>',
        f'<p id="par_9">{NAMED}</p>',
        '<p id="par_a">left in English</p>',
    ),
    "swriter/b.html": page('<p id="par_1">FIRST line, and more text!</p>', '<p id="par_2">Other</p>'),
}
GERMAN = {
    "swriter/a.html": page(
        '<h1 id="hd_1" dir="auto">Verschieben &amp; Kopieren</h1>',
        '<p id="par_1">Erste Zeile und &lt;mehr&gt; Text.</p>',
        f'<p id="par_2" class="paragraph">{SWITCH.replace("Press", "Drücken Sie").replace("Ctrl", "Strg")}.</p>',
        '<p id="par_3">Normal</p>',
        '<p id="par_4">12,5 %</p>',
        '<p id="par_5" class="code">Sub Haupt</p>',
        '<p id="par_7">voll</p>',
        '<p id="par_8">doppelt eins</p><p id="par_8">doppelt zwei</p>',
        f'<p id="par_9">{NAMED.replace("one", "einer").replace("way", "Weg")}</p>',
        '<p id="par_a">Left in English!</p>',
    ),
    "swriter/b.html": page('<p id="par_1">Anders</p>', '<p id="par_2">doppelt  EINS</p>'),
    "swriter/c.html": page('<p id="par_1">nur deutsch</p>'),
}
PAIRS = [
    ("Moving & Copying", "Verschieben & Kopieren"),
    ("First line and <more> text.", "Erste Zeile und <mehr> Text."),
    ("Press Ctrl+A.", "Drücken Sie Strg+A."),
    ("twice one", "doppelt eins"),
    ("twice two", "doppelt zwei"),
    ("one way", "einer Weg"),
]


def many(word, count=120):
    return {"x.html": page(*(f'<p id="par_{n}">{word} {"abcdefghij"[n % 10]} {n}</p>' for n in range(count)))}


def test_paragraphs_are_aligned_by_page_and_id(tmp_path):
    english, german = (
        paragraphs(write_help(tmp_path, language, pages)) for language, pages in (("en-us", ENGLISH), ("de", GERMAN))
    )
    pairs, dropped = align(english, german, english)
    assert sorted(pairs) == sorted(PAIRS)
    assert dropped == {
        "empty": 1,
        "untranslated": 2,
        "without letters": 1,
        "repeats (but for case, space and punctuation)": 2,
    }
    backward, _ = align(german, english, english)
    assert sorted(backward) == sorted((target, source) for source, target in PAIRS)


def test_a_pair_without_english_drops_what_was_left_in_english(tmp_path):
    texts = {"en": {("p", "1", 0): "Hello", ("p", "2", 0): "Bye"}, "de": {("p", "1", 0): "Hallo", ("p", "2", 0): "Bye"}, "fr": {("p", "1", 0): "Salut", ("p", "2", 0): "Adieu"}}  # fmt: skip
    pairs, dropped = align(texts["de"], texts["fr"], texts["en"])
    assert (pairs, dropped) == ([("Hallo", "Salut")], {"untranslated": 1})


@pytest.fixture
def packages(tmp_path):
    for language, word in (("en-us", "Sentence"), ("fr", "Phrase"), ("pt-br", "Frase")):
        write_help(tmp_path / "debs", language, many(word))
    return tmp_path / "debs"


def test_a_set_is_written_split_by_source_and_reads_without_a_leak(packages, tmp_path):
    out = tmp_path / "set"
    found = fetch("libreoffice-help", "en-fr", out, packages=packages)
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["README.md", *(f"{split}.{language}" for split in SPLITS for language in ("en", "fr"))]
    )
    texts = load_parallel(str(out), ("en", "fr"), DataConfig(), with_test=True)
    assert {split: len(part) for split, part in texts.splits.items()} == found.counts
    assert sum(found.counts.values()) == 120
    for split, part in texts.splits.items():
        for pair in part:
            assert pair.target == pair.source.replace("Sentence", "Phrase")
            assert split_of(text_hash(pair.source)) == split
    assert not audit_parallel(texts).warnings
    readme = (out / "README.md").read_text()
    assert "libreoffice-help-fr 4:7.4-1" in readme
    assert "MPL-2.0" in readme


def test_a_region_is_part_of_the_language(packages, tmp_path):
    assert fetch("libreoffice-help", "en-pt_BR", tmp_path / "set", packages=packages).pair == ("en", "pt_BR")
    assert (tmp_path / "set" / "train.pt_BR").exists()


def call(*words):
    result = CliRunner().invoke(app, ["download", *(str(word) for word in words)])
    if isinstance(result.exception, HeadstartError):
        return 2, str(result.exception), result.exception.hint
    assert result.exception is None, result.exception
    return result.exit_code, result.output, ""


def test_the_command_tells_what_it_made(packages, tmp_path):
    out = tmp_path / "set"
    code, said, _ = call("libreoffice-help", "--pair", "en-fr", "--out", out, "--deb-dir", packages, "--json")
    found = json.loads(said)
    assert code == 0
    assert found["versions"]["libreoffice-help-en-us"] == "4:7.4-1"
    code, said, _ = call("libreoffice-help", "--pair", "fr-en", "--out", tmp_path / "b", "--deb-dir", packages)
    assert code == 0
    assert "MPL-2.0" in said
    assert f"headstart audit {tmp_path / 'b'} --pair fr-en" in said


@pytest.fixture
def apt(packages, tmp_path, monkeypatch):
    """An apt that copies from a folder; what it answers can be chosen."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "dpkg-deb").symlink_to(shutil.which("dpkg-deb"))

    def answer(download, names="printf 'libreoffice-help-%s\\n' common en-us fr pt-br"):
        for name, script in (("apt-get", download), ("apt-cache", names)):
            (tools / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
            (tools / name).chmod(0o755)

    monkeypatch.setenv("PATH", str(tools))
    answer(f'shift 3; for name; do cp {packages}/"$name"_* . || exit 100; done')
    return answer


def test_apt_downloads_the_packages(apt, tmp_path):
    assert call("libreoffice-help", "--pair", "en-fr", "--out", tmp_path / "set", "--quiet")[0] == 0
    assert (tmp_path / "set" / "test.fr").exists()


@pytest.mark.parametrize(
    ("download", "names", "pair", "problem", "hint"),
    [
        ("exit 0", "printf 'libreoffice-help-%s\\n' common en-us fr", "en-fx", "no LibreOffice help in 'fx'", "'fr'"),
        ("echo 'E: Unable to locate package libreoffice-help-en-us' >&2; exit 100", "", "en-fr", "Unable to locate", "sudo apt-get update"),
        ("echo 'W: odd' >&2; echo 'E: Failed to fetch: no route' >&2; exit 100", "", "en-fr", "Failed to fetch", "network"),
        ("exit 0", "", "en-fr", "holds no file libreoffice-help-en-us", "apt-get download"),
    ],
)  # fmt: skip
def test_what_apt_cannot_do_is_said_with_a_hint(apt, tmp_path, download, names, pair, problem, hint):
    apt(download, names)
    code, said, advice = call("libreoffice-help", "--pair", pair, "--out", tmp_path / "set", "--quiet")
    assert code == 2
    assert problem in said
    assert hint in advice
    assert not (tmp_path / "set").exists()


def test_without_apt_there_is_another_way(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, said, hint = call("libreoffice-help", "--pair", "en-fr", "--out", tmp_path / "set")
    assert (code, "no apt-get here" in said, "--deb-dir" in hint) == (2, True, True)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["libreoffice", "--pair", "en-fr", "--out", "new"], "no set is called 'libreoffice'"),
        (["libreoffice-help", "--pair", "en", "--out", "new"], "no pair of languages"),
        (["libreoffice-help", "--pair", "en-fr", "--out", "debs"], "exists already"),
        (["libreoffice-help", "--pair", "en-fr", "--out", "new", "--deb-dir", "nowhere"], "nowhere"),
        (["libreoffice-help", "--pair", "en-de", "--out", "new", "--deb-dir", "debs"], "libreoffice-help-de"),
        (["libreoffice-help", "--pair", "en-fr", "--out", "new", "--deb-dir", "few"], "too few"),
        (["libreoffice-help", "--pair", "en-fr", "--out", "new", "--deb-dir", "bare"], "no help pages"),
    ],
)
def test_a_wrong_word_writes_nothing(packages, tmp_path, monkeypatch, words, problem):
    monkeypatch.chdir(tmp_path)
    for language in ("en-us", "fr"):
        write_help(tmp_path / "few", language, many(language, 2))
        write_help(tmp_path / "bare", language, {})
    code, said, hint = call(*words)
    assert code == 2
    assert problem in said
    assert hint
    assert not (tmp_path / "new").exists()


FILES = {"usr/share/a.txt": b"first", "usr/share/empty": b"", "usr/b.bin": bytes(range(256))}


def written(folder, content, name="toy_1.0_all.deb"):
    path = folder / name
    path.write_bytes(content)
    return path


def read_or_error(path):
    try:
        return dict(package_files(path))
    except DataError as error:
        return error


@pytest.mark.parametrize("packing", ["", "gz", "xz"])
def test_a_package_is_read_without_being_unpacked(tmp_path, packing):
    path = written(tmp_path, deb_of(FILES, packing=packing))
    assert read_or_error(path) == FILES
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_without_dpkg_a_package_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = read_or_error(written(tmp_path, deb_of(FILES)))
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
        ar_of({"data.tar": b"x"}).replace(b"1         `", b"9999999999`"),
    ],
    ids=["empty", "text", "bare", "nonsense", "cut", "short", "header", "hollow", "huge"],
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


def test_no_path_of_a_package_is_written_or_read_through(tmp_path):
    """Names that lead out of the package are names; links and devices are passed over."""
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("../../escaped", "/absolute", "usr/plain"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"text"))
        for kind, target in (
            (tarfile.SYMTYPE, str(secret)),
            (tarfile.LNKTYPE, "usr/plain"),
            (tarfile.FIFOTYPE, ""),
            (tarfile.CHRTYPE, ""),
        ):
            member = tarfile.TarInfo(f"usr/{kind.decode()}")
            member.type, member.linkname = kind, target
            archive.addfile(member)
    (tmp_path / "debs").mkdir()
    path = written(
        tmp_path / "debs",
        ar_of({"debian-binary": b"2.0\n", "control.tar": tar_of({}, ""), "data.tar": buffer.getvalue()}),
    )
    assert read_or_error(path) == dict.fromkeys(("../../escaped", "/absolute", "usr/plain"), b"text")
    assert {item.name for item in tmp_path.iterdir()} == {"secret", "debs"}


def test_the_newest_of_a_package_s_files_is_taken(tmp_path):
    for version in ("7.4.7", "7.10.1", "7.4.12"):
        written(tmp_path, b"", f"toy_{version}_all.deb")
    written(tmp_path, b"", "toy-more_9_all.deb")
    assert find_packages(["toy"], tmp_path)["toy"].name == "toy_7.10.1_all.deb"
    with pytest.raises(DataError, match=r"holds no file other_VERSION.deb"):
        find_packages(["other"], tmp_path)
