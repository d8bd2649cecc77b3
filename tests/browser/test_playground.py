"""The playground in a real browser: mouse, keyboard, phone, dark; hostile text stays text, and the console stays empty."""

import json

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.browser.conftest import DESKTOP, PHONE

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)> \"quote' &amp; \u202etfel 🎬 " + "w" * 300
TABS = ["classify", "write", "translate", "attention", "runs", "plan"]


class Page:
    """The page as a person uses it."""

    def __init__(self, browser, address):
        self.browser, self.address = browser, address
        self.wait = WebDriverWait(browser, 60)

    def open(self, tab):
        self.browser.get("about:blank")
        self.browser.get(f"{self.address}/#{tab}" if tab else self.address)
        self.wait.until(lambda _: self.run("return document.documentElement.dataset.ready") == "yes")
        return self

    def run(self, script, *given):
        return self.browser.execute_script(script, *given)

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def type(self, selector, text):
        """Put in text as pasting would: the driver cannot type every character."""
        self.run("const e = document.querySelector(arguments[0]); e.value = arguments[1]", selector, text)

    def send(self, form):
        self.find(f"#{form}-form button[type=submit]").click()
        self.settle(form)

    def settle(self, form):
        script = "return !document.querySelector(arguments[0]).disabled"
        self.wait.until(lambda _: self.run(script, f"#{form}-form button[type=submit]"))

    def shadow(self, place, selector):
        """Elements of the explorer, which stands in a tree of its own."""
        script = "return [...document.querySelector(arguments[0]).firstChild.shadowRoot.querySelectorAll(arguments[1])]"
        return self.run(script, place, selector)

    def keys(self, *keys):
        ActionChains(self.browser).send_keys(*keys).perform()

    def console(self):
        return [line for line in self.browser.get_log("browser") if line["level"] in ("WARNING", "SEVERE")]


@pytest.fixture
def page(browser, server):
    """The page at desktop width in the light; whatever a test did, the console must be empty."""
    look(browser, DESKTOP, "light")
    browser.get_log("browser")
    opened = Page(browser, server)
    yield opened
    assert opened.console() == []


def look(browser, size, scheme):
    width, height = size
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def test_a_text_gets_its_label_with_each_tokens_part(page):
    page.open("classify")
    page.type("#classify-text", "a wonderful film")
    page.send("classify")
    assert page.text("#classify-result .verdict bdi") in ("good", "bad")
    assert "%" in page.text("#classify-result .verdict small")
    assert len(page.all("#classify-result .bars li")) == 2
    assert page.text("#classify-result .pieces").strip() == "a wonderful film"
    assert (
        page.run("return getComputedStyle(document.querySelector('.piece')).backgroundColor")
        != "rgba(0, 0, 0, 0)"
    )
    page.find("#classify-explain").click()
    page.send("classify")
    assert not page.all("#classify-result .pieces")
    assert "null" not in page.text("#classify-result")


@pytest.mark.parametrize("tab", ["classify", "write", "attention"])
def test_hostile_text_is_shown_as_text_and_nothing_runs(page, tab):
    page.open(tab)
    page.type(
        {"classify": "#classify-text", "write": "#write-prompt", "attention": "#attention-text"}[tab], HOSTILE
    )
    page.send(tab)
    assert page.find("#problem").is_displayed() is False
    if tab == "classify":
        assert "<script>alert(1)" in page.text("#classify-result .pieces").replace("\\u202e", "")
        assert not page.all("#classify-result script, #classify-result img")
    if tab == "write":
        assert page.text("#written .given") == HOSTILE
        assert not page.all("#written script, #written img")
    if tab == "attention":
        shown = "".join(
            page.run("return arguments[0].map(e => e.textContent)", page.shadow("#attention-maps", ".token"))
        )
        assert "<script>" in shown.replace("▁", " ")
        assert not page.shadow("#attention-maps", "script, img")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


def test_text_comes_token_by_token_and_can_be_stopped(page):
    page.open("write")
    page.type("#write-tokens", "40")
    page.send("write")
    assert len(page.text("#written .new")) > 0
    assert "tokens" in page.text("#written-about")
    first = page.text("#written .new")
    page.send("write")
    assert page.text("#written .new") == first
    page.type("#write-seed", "5")
    page.send("write")
    assert page.text("#written .new") != first
    page.run("""const real = window.fetch; window.fetch = async (path, options) => {
        if (path !== "/v1/generate") return real(path, options);
        const body = new ReadableStream({ start(control) { control.enqueue(new TextEncoder().encode('{"text": "slow"}\\n'));
            options.signal.addEventListener("abort", () => control.error(options.signal.reason)); } });
        return new Response(body); };""")
    page.find("#write-go").click()
    page.wait.until(lambda _: page.text("#written .new") == "slow")
    page.find("#write-stop").click()
    page.settle("write")
    assert page.text("#written-about") == "stopped."
    assert page.find("#problem").is_displayed() is False


def test_attention_is_explored_by_mouse_and_by_keyboard(page):
    page.open("attention")
    page.send("attention")
    thumbs = page.shadow("#attention-maps", ".thumb")
    assert len(thumbs) == 4
    title = lambda: page.shadow("#attention-maps", "#which")[0].text
    assert title() == "Layer 1, attention head 1"
    thumbs[3].click()
    assert title() == "Layer 2, attention head 2"
    page.keys(Keys.ARROW_LEFT)
    assert title() == "Layer 2, attention head 1"
    tokens = page.shadow("#attention-maps", ".token")
    ActionChains(page.browser).move_to_element(tokens[2]).perform()
    assert "attends to" in page.shadow("#attention-maps", "#summary")[0].text
    tokens[2].click()
    page.keys(Keys.ARROW_RIGHT)
    assert "chosen" in page.shadow("#attention-maps", ".token")[3].get_attribute("class")
    page.shadow("#attention-maps", "input[value=to]")[0].click()
    assert "is attended to by" in page.shadow("#attention-maps", "#summary")[0].text
    drawn = page.run("""const map = arguments[0];
        return new Set(map.getContext("2d").getImageData(0, 0, map.width, map.height).data).size""",
        page.shadow("#attention-maps", "#map")[0])  # fmt: skip
    assert drawn > 10
    page.send("attention")
    assert title() == "Layer 1, attention head 1"


def test_a_translation_shows_under_the_pointer_where_each_token_looks(page):
    page.open("translate")
    page.type("#translate-text", "1234 <b>")
    page.send("translate")
    assert page.find("#translate-result").is_displayed()
    queries = page.shadow("#translate-maps", "#queries .token")
    keys = page.shadow("#translate-maps", "#keys .token")
    assert "1234" in "".join(page.run("return arguments[0].map(e => e.textContent)", keys)).replace("▁", "")
    said = lambda: page.shadow("#translate-maps", "#summary")[0].text
    ActionChains(page.browser).move_to_element(queries[0]).perform()
    assert "attends to" in said()
    ActionChains(page.browser).move_to_element(keys[1]).perform()
    assert "is attended to by" in said()
    assert not page.shadow("#translate-maps", "#keys b")


def test_a_plan_is_calculated(page):
    page.open("plan")
    Select(page.find("#plan-preset")).select_by_value("small")
    page.type("#plan-layers", "3")
    page.type("#plan-price", "1.5")
    page.send("plan")
    page.wait.until(lambda _: page.all("#plan-result table"))
    assert "parameters" in page.text("#plan-result h2")
    assert len(page.all("#plan-result section:last-of-type tbody tr")) > 30
    assert "cost" in page.text("#plan-result section:last-of-type thead")


def test_a_problem_is_told_with_its_hint(page):
    page.open("plan")
    page.type("#plan-width", "10")
    page.type("#plan-attention-heads", "3")
    page.send("plan")
    assert page.find("#problem").is_displayed()
    assert "no multiple" in page.text("#problem")
    assert "try 12" in page.text("#problem")
    lines = page.console()
    assert all("409" in line["message"] for line in lines)  # the browser itself notes the status
    page.type("#plan-width", "")
    page.type("#plan-attention-heads", "")
    page.send("plan")
    assert page.find("#problem").is_displayed() is False


def test_a_run_that_trains_is_followed_live(page, runs):
    log = runs / "unfinished" / "log.jsonl"
    before = log.read_bytes()
    try:
        page.open("runs")
        page.wait.until(lambda _: page.text("#run-name") == "unfinished")
        page.wait.until(lambda _: page.all("#run-charts .chart"))
        assert "training" in page.text("[data-run=unfinished] .state")
        line = json.loads(before.splitlines()[-1]) | {
            "event": "step",
            "step": 4321,
            "loss": 0.5,
            "progress": 0.75,
        }
        with open(log, "a", encoding="utf-8") as handle:
            handle.write(json.dumps({"seconds_left": 60, "tokens_per_second": 1000, **line}) + "\n")
        page.wait.until(lambda _: "4,321" in page.text("#run-about"))
        page.wait.until(lambda _: "75 %" in page.text("[data-run=unfinished] .state"))
        assert "training loss: 0.5" in page.text("#run-charts figcaption")
    finally:
        log.write_bytes(before)


def test_a_comparison_shows_its_report_in_a_sandbox(page):
    page.open("runs")
    page.find("[data-run=comparison]").click()
    page.wait.until(lambda _: page.all("#run-report iframe"))
    frame = page.find("#run-report iframe")
    assert frame.get_attribute("sandbox") == ""
    page.browser.switch_to.frame(frame)
    page.wait.until(lambda _: "what it bought" in page.browser.page_source)
    page.browser.switch_to.default_content()


def test_tabs_are_moved_through_by_keyboard_and_kept_in_the_address(page):
    page.open("classify")
    page.find("#tab-classify").send_keys(Keys.ARROW_RIGHT)
    assert page.browser.current_url.endswith("#write")
    page.keys(Keys.END)
    assert page.browser.current_url.endswith("#plan")
    page.keys(Keys.ARROW_RIGHT)
    assert page.browser.current_url.endswith("#classify")
    assert [tab for tab in TABS if page.find(f"#{tab}").is_displayed()] == ["classify"]
    assert page.run("return document.querySelectorAll('[role=tab][tabindex=\"0\"]').length") == 1


def test_everything_is_reached_with_the_keyboard_alone(page):
    page.open("")
    seen = []
    for _ in range(9):
        page.keys(Keys.TAB)
        seen.append(
            page.run(
                "return document.activeElement.id || document.activeElement.className || document.activeElement.type"
            )
        )
    assert seen[:2] == ["skip", "tab-classify"]
    assert [name for name in seen if name in ("classify-text", "classify-model", "classify-explain", "submit")] == [
        "classify-text", "classify-model", "classify-explain", "submit",
    ]  # fmt: skip
    page.find("#classify-text").send_keys(Keys.CONTROL, Keys.ENTER)
    page.wait.until(lambda _: page.find("#classify-result").is_displayed())


def test_every_control_has_a_name_and_every_id_stands_once(page):
    page.open("classify")
    unnamed = page.run("""return [...document.querySelectorAll("input, select, textarea, button, iframe")].filter((e) =>
        !(e.labels && e.labels.length) && !e.textContent.trim() && !e.getAttribute("aria-label") && !e.title).map((e) => e.outerHTML)""")
    assert unnamed == []
    twice = page.run("""const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
        return ids.filter((id, place) => ids.indexOf(id) !== place)""")
    assert twice == []
    lost = page.run("""return [...document.querySelectorAll("[aria-controls], [aria-labelledby], label[for]")].filter((e) =>
        !document.getElementById(e.getAttribute("aria-controls") || e.getAttribute("aria-labelledby") || e.htmlFor)).length""")
    assert lost == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tab", TABS)
def test_nothing_overflows_a_phone_and_fingers_find_the_buttons(page, tab, scheme):
    look(page.browser, PHONE, scheme)
    page.open(tab)
    if tab != "runs":
        page.send(tab)
    else:
        page.wait.until(lambda _: page.find("#run-detail").is_displayed())
    assert page.run("return document.documentElement.scrollWidth") <= PHONE[0]
    small = page.run("""return [...document.querySelectorAll("main button, main select, main textarea, main input[type=number]")]
        .filter((e) => e.offsetParent && e.getBoundingClientRect().height < 40).map((e) => e.outerHTML)""")
    assert small == []


CONTRAST = """
const parse = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
const light = ([r, g, b]) => { const c = [r, g, b].map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; };
const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0.9) return c; } return [255, 255, 255]; };
return [...document.querySelectorAll("h1, h2, p, label, button, small, th, td, li, figcaption, input, select, textarea")].filter((e) => e.offsetParent && e.textContent.trim() && !e.disabled)
  .map((e) => { const a = light(parse(getComputedStyle(e).color)), b = light(ground(e)); return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 80)]; })
  .filter(([ratio]) => ratio < 4.5)
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tab", TABS)
def test_every_word_stands_out_from_its_ground(page, tab, scheme):
    look(page.browser, DESKTOP, scheme)
    page.open(tab)
    if tab != "runs":
        page.send(tab)
    assert page.run(CONTRAST) == []


def test_dark_is_dark_and_light_is_light(page):
    found = {}
    for scheme in ("light", "dark"):
        look(page.browser, DESKTOP, scheme)
        page.open("classify")
        found[scheme] = page.run("return getComputedStyle(document.body).backgroundColor")
    assert found["light"] == "rgb(244, 246, 249)"
    assert found["dark"] == "rgb(18, 21, 27)"


def test_nothing_is_fetched_from_elsewhere(page):
    page.open("classify")
    page.send("classify")
    page.open("attention")
    page.send("attention")
    names = page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert names
    assert all(name.startswith(page.address) for name in names)
