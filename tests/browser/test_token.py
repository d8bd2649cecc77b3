"""A server that needs a token, in a browser."""

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.conftest import Page, open_browser
from tests.serving.clients import running

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def guarded(runs, tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n", "utf-8")
    words = ["--token-file", str(tmp_path / "token")]
    with running(runs / "classifier", runs / "comparison", options=words) as (process, port):
        yield process, f"http://127.0.0.1:{port}"


def test_the_page_requests_the_token_and_stores_it_for_the_tab(guarded, tmp_path):
    process, address = guarded
    browser = open_browser(tmp_path / "profile")
    try:
        page = Page(browser, address)
        browser.get(address)
        page.until(lambda: page.is_shown("#token"))
        page.press("#token", "a wrong token", Keys.ENTER)
        empty = "return document.getElementById('token').value === ''"
        page.until(lambda: page.is_shown("#token") and page.run(empty))
        page.press("#token", TOKEN, Keys.ENTER)
        page.until_ready()
        browser.refresh()
        page.until_ready()
        page.click("#tab-runs")
        page.click("[data-run=comparison]")
        # The run that was shown first has a report as well: wait for the frame of the one that was clicked.
        assert page.frame_shows("iframe[title='Report of comparison']", "what it bought")
    finally:
        browser.quit()
    assert TOKEN not in process.read_log()
    assert "ticket" not in process.read_log()
