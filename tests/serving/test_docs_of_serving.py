"""Every curl in docs/serve.md is answered."""

import re
import shlex
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")
CURLS = re.findall(r"^curl .*$", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize("line", CURLS, ids=range(len(CURLS)))
def test_every_curl_in_the_docs_is_answered(serve, line):
    client, _ = serve("classifier", "base", "translator")
    words = shlex.split(line)
    path = next(word for word in words if word.startswith("http")).removeprefix("http://127.0.0.1:8000")
    if "-d" in words:
        header = dict([words[words.index("-H") + 1].split(": ")])
        answer = client.post(path, content=words[words.index("-d") + 1], headers=header)
    else:
        answer = client.get(path)
    assert answer.status_code == 200, answer.text


def test_every_endpoint_is_in_the_docs():
    from headstart.serving.routes import router

    for route in router.routes:
        assert route.path.replace("{name}", "NAME").removesuffix("/report") in PAGE
