"""A real browser in front of a real server; `make test-browser` installs what is needed and runs these."""

import os
import shutil

import pytest

from tests.serving.clients import running
from tests.serving.conftest import runs

__all__ = ["runs"]

# Asked for by name only: a plain `pytest` needs no browser.
collect_ignore_glob = [] if os.environ.get("BROWSER_TESTS") else ["test_*.py"]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
DESKTOP, PHONE = (1200, 900), (390, 844)


def open_browser(folder, size=DESKTOP):
    """A fresh browser of its own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in (*FLAGS, f"--user-data-dir={folder}", f"--window-size={size[0]},{size[1]}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = shutil.which("chromedriver")
    assert driver, "no chromedriver: `make test-browser` installs one"
    return webdriver.Chrome(options=options, service=Service(driver))


@pytest.fixture(scope="session")
def server(runs):
    """The address of a server over the small runs."""
    names = ("classifier", "base", "translator", "unfinished", "comparison")
    with running(*(runs / name for name in names)) as (_, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One browser for all tests."""
    driver = open_browser(tmp_path_factory.mktemp("browser"))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()
