"""The playground in a real browser: mouse, keyboard, phone, dark; hostile text stays text, and the console stays empty."""

import json

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.conftest import DESKTOP, FIND_ALL, PHONE, Page

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)> \"quote' &amp; \u202etfel 🎬 " + "w" * 300
TABS = ["classify", "generate", "translate", "attention", "runs", "plan"]


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


def test_a_text_gets_its_label_with_the_attribution_of_each_token(page):
    page.open("classify")
    page.type("#classify-text", "a wonderful film")
    page.send("classify")
    assert page.text("#classify-result .verdict bdi") in ("good", "bad")
    assert "%" in page.text("#classify-result .verdict small")
    assert page.count("#classify-result .bars li") == 2
    assert page.text("#classify-result .pieces").strip() == "a wonderful film"
    assert page.run("return getComputedStyle(document.querySelector('.piece')).backgroundColor") != "rgba(0, 0, 0, 0)"
    page.click("#classify-explain")
    page.send("classify")
    assert not page.count("#classify-result .pieces")
    assert "null" not in page.text("#classify-result")


@pytest.mark.parametrize("tab", ["classify", "generate", "attention"])
def test_hostile_text_is_shown_as_text_and_nothing_runs(page, tab):
    page.open(tab)
    page.type(
        {"classify": "#classify-text", "generate": "#generate-prompt", "attention": "#attention-text"}[tab], HOSTILE
    )
    page.send(tab)
    assert not page.is_shown("#problem")
    if tab == "classify":
        assert "<script>alert(1)" in page.text("#classify-result .pieces").replace("\\u202e", "")
        assert not page.count("#classify-result script, #classify-result img")
    if tab == "generate":
        assert page.text("#generated .given") == HOSTILE
        assert not page.count("#generated script, #generated img")
    if tab == "attention":
        assert "<script>" in "".join(page.texts("#attention-maps >>> .token")).replace("▁", " ")
        assert not page.count("#attention-maps >>> script, img")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


def test_text_comes_token_by_token_and_can_be_stopped(page):
    page.open("generate")
    page.type("#generate-tokens", "40")
    page.send("generate")
    assert len(page.text("#generated .new")) > 0
    assert "tokens" in page.text("#generated-about")
    first = page.text("#generated .new")
    page.send("generate")
    assert page.text("#generated .new") == first
    page.type("#generate-seed", "5")
    page.send("generate")
    assert page.text("#generated .new") != first
    page.run("""const real = window.fetch; window.fetch = async (path, options) => {
        if (path !== "/v1/generate") return real(path, options);
        const body = new ReadableStream({ start(control) { control.enqueue(new TextEncoder().encode('{"text": "slow"}\\n'));
            options.signal.addEventListener("abort", () => control.error(options.signal.reason)); } });
        return new Response(body); };""")
    page.click("#generate-go")
    page.until(lambda: page.text("#generated .new") == "slow")
    page.click("#generate-stop")
    page.settle("generate")
    assert page.text("#generated-about") == "stopped."
    assert not page.is_shown("#problem")


def test_attention_is_explored_by_mouse_and_by_keyboard(page):
    page.open("attention")
    page.send("attention")
    title, summary = "#attention-maps >>> #which", "#attention-maps >>> #summary"
    assert page.has_text(title, "Layer 1, attention head 1")
    assert page.count("#attention-maps >>> .thumb") == 4
    page.click("#attention-maps >>> .thumb", 3)
    assert page.has_text(title, "Layer 2, attention head 2")
    page.keys(Keys.ARROW_LEFT)
    assert page.has_text(title, "Layer 2, attention head 1")
    page.hover("#attention-maps >>> .token", 2)
    assert page.has_text(summary, "attends to")
    page.click("#attention-maps >>> .token", 2)
    page.keys(Keys.ARROW_RIGHT)
    assert page.until(lambda: "chosen" in page.attribute("#attention-maps >>> .token", "class", 3))
    page.click("#attention-maps >>> input[value=to]")
    assert page.has_text(summary, "is attended to by")
    colours = """const map = all("#attention-maps >>> #map")[0];
        return new Set(map.getContext("2d").getImageData(0, 0, map.width, map.height).data).size"""
    assert page.until(lambda: page.run(FIND_ALL + colours) > 10)
    page.send("attention")
    assert page.has_text(title, "Layer 1, attention head 1")


def test_a_translation_shows_what_the_token_under_the_pointer_attends_to(page):
    page.open("translate")
    page.type("#translate-text", "1234 <b>")
    page.send("translate")
    assert page.is_shown("#translate-result")
    keys = "#translate-maps >>> #keys .token"
    assert page.until(lambda: "1234" in "".join(page.texts(keys)).replace("▁", ""))
    page.hover("#translate-maps >>> #queries .token", 0)
    assert page.has_text("#translate-maps >>> #summary", "attends to")
    page.hover(keys, 1)
    assert page.has_text("#translate-maps >>> #summary", "is attended to by")
    assert not page.count("#translate-maps >>> #keys b")


def test_a_plan_is_calculated(page):
    page.open("plan")
    page.type("#plan-preset", "small")
    page.type("#plan-layers", "3")
    page.type("#plan-price", "1.5")
    page.send("plan")
    page.until(lambda: page.count("#plan-result table"))
    assert "parameters" in page.text("#plan-result h2")
    assert page.count("#plan-result section:last-of-type tbody tr") > 30
    assert "cost" in page.text("#plan-result section:last-of-type thead")


def test_a_problem_is_shown_with_its_hint(page):
    page.open("plan")
    page.type("#plan-width", "10")
    page.type("#plan-attention-heads", "3")
    page.send("plan")
    assert page.is_shown("#problem")
    assert "not a multiple" in page.text("#problem")
    assert "try 12" in page.text("#problem")
    lines = page.console()
    assert all("409" in line["message"] for line in lines)  # the browser itself notes the status
    page.type("#plan-width", "")
    page.type("#plan-attention-heads", "")
    page.send("plan")
    assert not page.is_shown("#problem")


def test_the_curves_of_a_run_that_trains_are_live(page, runs):
    log = runs / "unfinished" / "log.jsonl"
    before = log.read_bytes()
    try:
        page.open("runs")
        page.until(lambda: page.text("#run-name") == "unfinished")
        page.until(lambda: page.count("#run-charts .chart"))
        assert page.has_text("[data-run=unfinished] .state", "training")
        line = json.loads(before.splitlines()[-1]) | {"event": "step", "step": 4321, "loss": 0.5, "progress": 0.75}
        with open(log, "a", encoding="utf-8") as handle:
            handle.write(json.dumps({"seconds_left": 60, "tokens_per_second": 1000, **line}) + "\n")
        assert page.has_text("#run-about", "4,321")
        assert page.has_text("[data-run=unfinished] .state", "75 %")
        assert page.has_text("#run-charts figcaption", "training loss: 0.5")
    finally:
        log.write_bytes(before)


def test_a_comparison_shows_its_report_in_a_sandbox(page):
    page.open("runs")
    page.click("[data-run=comparison]")
    frame = "iframe[title='Report of comparison']"
    assert page.until(lambda: page.count(frame))
    assert page.run("return document.querySelector(arguments[0]).getAttribute('sandbox')", frame) == ""
    assert page.frame_shows(frame, "what it bought")


def test_the_keyboard_moves_through_tabs_and_the_address_names_the_tab(page):
    page.open("classify")
    page.press("#tab-classify", Keys.ARROW_RIGHT)
    assert page.until(lambda: page.browser.current_url.endswith("#generate"))
    page.keys(Keys.END)
    assert page.until(lambda: page.browser.current_url.endswith("#plan"))
    page.keys(Keys.ARROW_RIGHT)
    assert page.until(lambda: page.browser.current_url.endswith("#classify"))
    assert [tab for tab in TABS if page.is_shown(f"#{tab}")] == ["classify"]
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
    page.press("#classify-text", Keys.CONTROL, Keys.ENTER)
    assert page.until(lambda: page.is_shown("#classify-result"))


def test_every_control_has_a_name_and_every_id_is_unique(page):
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
def test_nothing_overflows_a_phone_and_buttons_are_large_enough(page, tab, scheme):
    look(page.browser, PHONE, scheme)
    page.open(tab)
    if tab != "runs":
        page.send(tab)
    else:
        page.until(lambda: page.is_shown("#run-detail"))
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
def test_every_word_has_enough_contrast(page, tab, scheme):
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
