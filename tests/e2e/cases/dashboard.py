"""The dashboard in a real browser: every section shows live data under its content security policy, on small
and large screens, in light and dark, for the keyboard and for screen readers."""
import http.client
import json
import re

import wire
from browser import Browser
from cases.chat import ASK
from configs import HOSTILE
from env import PLAIN, SLOW, Env

STATE = "(document.getElementById('state')?.textContent ?? '')"
# Text whose contrast with what is behind it is below 4.5, as a list.
WEAK = """(() => {
  const channels = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = element => {
    for (let one = element; one; one = one.parentElement) {
      const color = channels(getComputedStyle(one).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const weak = [];
  for (const element of document.body.querySelectorAll("*:not(script, option)")) {
    const isText = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!isText || !element.getClientRects().length) continue;
    const [one, other] = [channels(getComputedStyle(element).color), behind(element)].map(luminance);
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) weak.push([element.textContent.slice(0, 30), contrast]);
  }
  return weak;
})()"""
# The focused element, and whether its focus can be seen.
FOCUSED = """(() => {
  const one = document.activeElement, style = getComputedStyle(one);
  const name = one.id || one.getAttribute("href") || one.getAttribute("aria-labelledby") || one.tagName;
  return [name, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
})()"""
NAMED = {"link", "button", "combobox", "textbox", "image", "region", "table", "meter", "navigation", "form",
         "DisclosureTriangle"}
SCHEMES = ("light", "dark")


def open_page(env: Env, admin: str, width: int = 1280) -> Browser:
    """The page once it has data twice, so that rates are known."""
    browser = env.browser()
    browser.open("about:blank")
    browser.wait("the page before is gone", "location.href === 'about:blank'")
    browser.complaints.clear()
    browser.prefer()
    browser.resize(width)
    browser.open(admin + "/dashboard")
    browser.wait("the page is live", f"{STATE} === 'live'")
    browser.wait("the history", "document.querySelector('#charts path[d*=M]') !== null")
    return browser


def texts(browser: Browser, selector: str) -> list[str]:
    """The text of each element that matches."""
    return browser.eval(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)")


def case_dashboard_shows_the_fleet(env: Env) -> None:
    """Every section is filled."""
    proxy = env.proxy()
    assert wire.fetch(proxy.url + "/v1/chat/completions", ASK).status == 200
    browser = open_page(env, proxy.admin)
    assert wire.fetch(proxy.url + "/v1/chat/completions", {**ASK, "model": "unknown"}).status == 404
    browser.wait("the error", "document.getElementById('error-rows').textContent.includes('model_not_found')")
    fleet = wire.fetch(proxy.admin + "/fleet").json()["backends"]
    assert texts(browser, "#backend-rows th") == [backend["name"] for backend in fleet]
    assert len(texts(browser, "#cards dd")) >= 10 and "" not in texts(browser, "#cards dd")
    assert len(texts(browser, "#charts svg[role=img][aria-label*=now]")) == 4
    assert any(PLAIN in text for text in texts(browser, "#decision-rows tr"))
    assert any("best of 2" in text or "only candidate" in text for text in texts(browser, "#decision-rows summary"))
    assert "routing.predict" not in texts(browser, "#predictions-note")[0], "the default strategy predicts"
    for section in ("memory", "predictions", "protection", "errors", "shadow", "usage"):
        assert len(texts(browser, f"#{section}")[0].split()) > 3, section
    assert "routing.shadow" in texts(browser, "#shadow-note")[0]
    assert "ledger.path" in texts(browser, "#usage-note")[0], "there is no file"
    assert browser.eval("document.getElementById('budgets').hidden"), "there are none"
    browser.wait("usage", "document.querySelector('#usage-rows tr')?.textContent.includes('(no key)')")
    assert not browser.complaints, browser.complaints


def case_dashboard_shows_budgets(env: Env) -> None:
    """A table of what is spent; a name that could be markup is plain text."""
    proxy = env.proxy("budgets")
    browser = open_page(env, proxy.admin)
    assert wire.fetch(proxy.url + "/v1/chat/completions", ASK).status == 200
    row = "[...document.querySelectorAll('#budget-rows tr > *')].map(one => one.textContent)"
    browser.wait("what was spent", f"parseFloat(({row})[2]) > 0")
    state = wire.fetch(proxy.admin + "/budgets").json()["budgets"][0]
    shown = browser.eval(row)
    assert shown[:2] == [state["name"], "all"] and shown[4] == "1000.00", shown
    assert float(shown[2]) == round(state["spent"], 4 if state["spent"] < 10 else 2), (shown, state)
    assert texts(browser, "#budgets-note") == ["In EUR."]
    assert not browser.eval("document.getElementById('budgets-link').hidden")
    assert not browser.eval(WEAK)
    assert not browser.complaints, browser.complaints


def case_dashboard_is_live(env: Env) -> None:
    """A request shows while it runs, without a reload; without the stream the page polls, and it says so;
    it says when penstock is gone."""
    proxy = env.proxy("watched")
    browser = open_page(env, proxy.admin)
    browser.eval("window.isSame = true")
    card = "[...document.querySelectorAll('#cards div')].find(one => one.dataset.key === 'requests in flight')"
    assert browser.eval(f"{card}.lastChild.textContent") == "0"
    stream = env.openai(SLOW, proxy="watched").chat.completions.create(
        model=SLOW, max_tokens=700, messages=[{"role": "user", "content": "go on"}], stream=True)
    assert next(iter(stream)).choices
    browser.wait("the request in flight", f"{card}.lastChild.textContent === '1'")
    stream.close()
    browser.wait("its end", f"{card}.lastChild.textContent === '0'")
    browser.wait("its decision", f"document.getElementById('decision-rows').textContent.includes('{SLOW}')")
    assert browser.eval("window.isSame"), "the page was loaded again"
    # The only stream is taken: the next page polls.
    browser.open("about:blank")
    browser.wait("the page before is gone", "location.href === 'about:blank'")
    taken: list[http.client.HTTPResponse] = []
    wire.wait_until("the stream is free", lambda: open_stream(proxy.admin, taken) == 200, 10.0)
    browser.open(proxy.admin + "/dashboard")
    browser.wait("polling", f"{STATE}.startsWith('polling')")
    taken.pop().close()
    browser.wait("live again", f"{STATE} === 'live'")
    proxy.close()
    browser.wait("disconnected", f"{STATE}.startsWith('disconnected')")


def open_stream(admin: str, kept: list[http.client.HTTPResponse]) -> int:
    """The status of the usage stream, which stays open as long as it is kept."""
    connection = wire.connect(admin)
    connection.request("GET", "/api/usage-stream")
    kept[:] = [connection.getresponse()]
    return kept[0].status


def case_dashboard_fits_narrow_and_wide_screens(env: Env) -> None:
    """40 backends and models with names of 120 characters: only tables scroll, each in its region; a
    hostile name is plain text."""
    proxy = env.proxy("wide")
    name = wire.fetch(proxy.admin + "/fleet").json()["backends"][0]["models"][0]["id"]
    for model in (name, name, HOSTILE):
        assert wire.fetch(proxy.url + "/v1/chat/completions", {**ASK, "model": model}).status == 200
    browser = open_page(env, proxy.admin, 360)
    assert len(texts(browser, "#backend-rows tr")) == 40
    assert HOSTILE in texts(browser, "#backend-rows tr")[0]
    assert browser.eval("document.images.length") == 0, "a name became markup"
    browser.wait("decisions", "document.querySelectorAll('#decision-rows tr').length === 3")
    browser.wait("usage", "document.querySelector('#usage-rows tr') !== null")
    browser.wait("predictions", "document.querySelector('#prediction-rows tr') !== null")
    assert "" not in texts(browser, "#prediction-rows tr > *")
    for width in (360, 1280):
        browser.resize(width)
        page, window = browser.eval("[document.documentElement.scrollWidth, innerWidth]")
        assert page <= window == width, (width, page, window)
        right = browser.eval("document.querySelector('#backend-rows td').getBoundingClientRect().right")
        assert right <= width, f"the state is at {right} of {width} px"
        outside = browser.eval("""[...document.querySelectorAll('main *')]
            .filter(one => !one.closest('.scroll') && one.getBoundingClientRect().right > innerWidth + 1)
            .map(one => one.outerHTML.slice(0, 80))""")
        assert not outside, outside
    assert browser.eval("[...document.querySelectorAll('.scroll')].every(one => one.tabIndex === 0)")
    assert not browser.complaints, browser.complaints
    assert "same backend" in texts(browser, "#shadow-facts")[0]
    assert texts(browser, "#usage-note") == [""], "the ledger has a file"


def case_dashboard_is_accessible(env: Env) -> None:
    """Landmarks, headings, names of controls, text alternatives, contrast in both schemes, and a walk by keyboard."""
    proxy = env.proxy()
    wire.fetch(proxy.url + "/v1/chat/completions", ASK)
    browser = open_page(env, proxy.admin)
    roles: dict[str, list[str]] = {}
    for node in browser.tree():
        if not node.get("ignored"):
            role, name = node.get("role", {}).get("value", ""), node.get("name", {}).get("value", "")
            roles.setdefault(role, []).append(name)
    for role in NAMED & roles.keys():
        assert all(roles[role]), (role, roles[role])
    assert {"banner", "navigation", "main", "region", "table", "image", "combobox", "status"} <= roles.keys(), roles.keys()
    assert len(roles["image"]) == 4 and all("now" in name for name in roles["image"]), roles["image"]
    levels = browser.eval("[...document.querySelectorAll('h1, h2, h3')].map(one => one.tagName).join('')")
    assert re.fullmatch("H1(H2)+", levels), levels
    assert browser.eval("[...document.querySelectorAll('table')].every(one => one.caption?.textContent)")
    assert len(texts(browser, "[aria-live], [role=status], [role=alert]")) == 1, "one thing speaks"
    for scheme in SCHEMES:
        browser.prefer(prefers_color_scheme=scheme)
        assert not browser.eval(WEAK), (scheme, browser.eval(WEAK))
    grounds = []
    for scheme in SCHEMES:
        browser.eval(f"(() => {{ const one = document.getElementById('theme'); one.value = '{scheme}'; one.dispatchEvent(new Event('change')); }})()")
        grounds.append(browser.eval("getComputedStyle(document.body).backgroundColor"))
        assert not browser.eval(WEAK), (scheme, browser.eval(WEAK))
    assert grounds[0] != grounds[1], "the switch decides, whatever the system prefers"
    walk_by_keyboard(browser)
    assert not browser.complaints, browser.complaints


def walk_by_keyboard(browser: Browser) -> None:
    """Tab reaches the skip link first, then every control and region; each shows its focus."""
    browser.eval("document.activeElement.blur(); scrollTo(0, 0)")
    reached = []
    for _ in range(80):
        browser.press("Tab", 9)
        name, is_visible = browser.eval(FOCUSED)
        if name == "BODY" or (reached and name == reached[0]):
            break
        assert is_visible, name
        reached.append(name)
        if name == "SUMMARY" and reached.count(name) == 1:
            browser.press("Enter", 13, "\r")
            assert browser.eval("document.activeElement.parentElement.open"), "Enter opens a reason"
    wanted = ["#main", "theme", "#overview", "#usage", "backends-title", "decisions-title", "SUMMARY",
              "usage-by", "usage-since", "usage-title"]
    assert [name for name in reached if name in wanted and name != "SUMMARY"] == [n for n in wanted if n != "SUMMARY"], reached
    assert "SUMMARY" in reached, reached
