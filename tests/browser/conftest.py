"""A real browser in front of a real server; `make test-browser` installs what is needed and runs these."""

import os
import shutil

import pytest

try:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:  # needed by these tests only, which a plain `pytest` does not run
    pass

from tests.serving.clients import running
from tests.serving.conftest import runs

__all__ = ["runs"]

# A plain `pytest` needs no browser.
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
    """A new browser with its own profile."""
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


# Finds elements in the document, or, after " >>> ", in the shadow tree of the first element within.
FIND_ALL = """const all = (path) => {
    const [outer, inner] = path.split(" >>> ");
    if (!inner) return [...document.querySelectorAll(outer)];
    const root = document.querySelector(outer)?.firstElementChild?.shadowRoot;
    return root ? [...root.querySelectorAll(inner)] : [];
};
"""


class Page:
    """The page as a person uses it.

    The page replaces its elements at any time, so no element is held: each poll of a wait finds it again, and text and
    attributes are read by one script.
    """

    def __init__(self, browser, address):
        from selenium.common import exceptions

        self.browser, self.address = browser, address
        changes = (
            exceptions.StaleElementReferenceException,
            exceptions.NoSuchElementException,
            exceptions.ElementNotInteractableException,
            exceptions.ElementClickInterceptedException,
            exceptions.MoveTargetOutOfBoundsException,
            exceptions.JavascriptException,
            IndexError,
        )
        self.wait = WebDriverWait(browser, 60, poll_frequency=0.1, ignored_exceptions=changes)

    def open(self, tab):
        self.browser.get("about:blank")
        self.browser.get(f"{self.address}/#{tab}" if tab else self.address)
        return self.until_ready()

    def until_ready(self):
        self.until(lambda: self.run("return document.documentElement.dataset.ready") == "yes")
        return self

    def until(self, condition, message=""):
        """Wait until the condition is true, and give what it returned."""
        return self.wait.until(lambda _: condition(), message)

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def texts(self, path):
        """The text of every element found now."""
        return self.run(FIND_ALL + "return all(arguments[0]).map((e) => e.textContent)", path)

    def count(self, path):
        return self.run(FIND_ALL + "return all(arguments[0]).length", path)

    def text(self, path):
        """The text of the first element, once there is one."""
        return self.until(lambda: self.texts(path)[:1], path)[0]

    def has_text(self, path, part):
        """Whether the first element shows this text before the time is up."""
        return self.until(lambda: part in self.text(path), f"{part!r} in {path}")

    def attribute(self, path, name, index=0):
        """An attribute of an element, once there is one; "" when it lacks the attribute."""
        script = (
            FIND_ALL + "const e = all(arguments[0])[arguments[2]]; return e && [e.getAttribute(arguments[1]) ?? '']"
        )
        return self.until(lambda: self.run(script, path, name, index), path)[0]

    def is_shown(self, path):
        return self.run(FIND_ALL + "return (all(arguments[0])[0]?.getClientRects().length ?? 0) > 0", path)

    def element(self, path, index=0):
        """An element for one action, found now."""
        return self.run(FIND_ALL + "return all(arguments[0])", path)[index]

    def click(self, path, index=0):
        self.until(lambda: self.element(path, index).click() or True, f"click {path}")

    def hover(self, path, index=0):
        move = lambda: ActionChains(self.browser).move_to_element(self.element(path, index)).perform()
        self.until(lambda: move() or True, f"hover {path}")

    def press(self, path, *keys):
        """Send keys to an element."""
        self.until(lambda: self.element(path).send_keys(*keys) or True, f"press keys in {path}")

    def keys(self, *keys):
        """Send keys to the element that has the focus."""
        ActionChains(self.browser).send_keys(*keys).perform()

    def type(self, path, text):
        """Put in text as pasting would: the driver cannot type every character."""
        self.run(FIND_ALL + "all(arguments[0])[0].value = arguments[1]", path, text)

    def send(self, form):
        self.click(f"#{form}-form button[type=submit]")
        self.settle(form)

    def settle(self, form):
        script = "return !document.querySelector(arguments[0]).disabled"
        self.until(lambda: self.run(script, f"#{form}-form button[type=submit]"), f"{form} is answered")

    def frame_shows(self, path, part):
        """Whether the document in a frame contains this text before the time is up."""

        def look():
            self.browser.switch_to.default_content()
            self.browser.switch_to.frame(self.element(path))
            return part in self.browser.page_source

        try:
            return self.until(look, f"{part!r} in {path}")
        finally:
            self.browser.switch_to.default_content()

    def console(self):
        return [line for line in self.browser.get_log("browser") if line["level"] in ("WARNING", "SEVERE")]


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
