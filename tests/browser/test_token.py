"""A server with a token, in a browser that is asked for it."""

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.browser.conftest import open_browser
from tests.serving.clients import running

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def guarded(runs, tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n", "utf-8")
    words = ["--token-file", str(tmp_path / "token")]
    with running(runs / "classifier", runs / "comparison", options=words) as (process, port):
        yield process, f"http://127.0.0.1:{port}"


def test_the_page_asks_for_the_token_and_keeps_it_for_the_tab(guarded, tmp_path):
    process, address = guarded
    browser = open_browser(tmp_path / "profile")
    try:
        wait = WebDriverWait(browser, 60)
        browser.get(address)
        field = browser.find_element(By.ID, "token")
        wait.until(lambda _: field.is_displayed())
        field.send_keys("a wrong token", Keys.ENTER)
        wait.until(lambda _: field.is_displayed() and not field.get_attribute("value"))
        field.send_keys(TOKEN, Keys.ENTER)
        is_ready = "return document.documentElement.dataset.ready === 'yes'"
        wait.until(lambda _: browser.execute_script(is_ready))
        browser.refresh()
        wait.until(lambda _: browser.execute_script(is_ready))
        browser.find_element(By.ID, "tab-runs").click()
        wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, "[data-run=comparison]"))
        browser.find_element(By.CSS_SELECTOR, "[data-run=comparison]").click()
        # The run that was shown first has a report as well: wait for the frame of the one that was clicked.
        frame = (By.CSS_SELECTOR, "iframe[title='Report of comparison']")
        wait.until(lambda _: browser.find_elements(*frame))
        browser.switch_to.frame(browser.find_element(*frame))
        wait.until(lambda _: "what it bought" in browser.page_source)
    finally:
        browser.quit()
    assert TOKEN not in process.said()
    assert "ticket" not in process.said()
