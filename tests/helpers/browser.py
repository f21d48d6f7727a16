"""Chromium without a window, as the system's packages install it, for tests that read pages."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

PHONE = 375, 667  # CSS pixels

# Draws the backgrounds below every piece of text, then its colour, in one pixel, which is read.
COLOURS = """
const context = Object.assign(document.createElement("canvas"), {width: 1, height: 1})
  .getContext("2d", {willReadFrequently: true});
const painted = colour => {
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const luminance = rgb => rgb.map(c => c / 255)
  .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
const found = [];
const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
for (let node; node = walker.nextNode();) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const parent = node.parentElement;
  if (!node.data.trim() || !range.getClientRects().length) continue;
  const above = [];
  for (let e = parent; e; e = e.parentElement) above.unshift(getComputedStyle(e));
  painted(isDark ? "black" : "white");
  let background;
  context.globalAlpha = 1;
  for (const style of above) {
    context.globalAlpha *= style.opacity;
    background = painted(style.backgroundColor);
  }
  const style = above.at(-1);
  const ink = painted(parent.closest("svg") ? style.fill : style.color);
  context.globalAlpha = 1;
  const [dark, light] = [luminance(background), luminance(ink)].sort((a, b) => a - b);
  found.push({
    text: node.data, tag: parent.localName, background, ink,
    contrast: (light + 0.05) / (dark + 0.05), width: range.getBoundingClientRect().width,
  });
}
return found;
"""


# A word that is broken has a box of each line; a dotted name may be broken after a dot.
BROKEN = """
const found = [];
for (const element of document.querySelectorAll(arguments[0])) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {
    for (const match of node.data.matchAll(/\\S+/g)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
      if (tops.size > 1) found.push(match[0]);
    }
  }
}
return found;
"""


@dataclass(frozen=True)
class Visit:
    """A page that is shown in a browser."""

    driver: Any

    @property
    def width(self) -> int:
        """The width of everything on the page, in CSS pixels."""
        return self.driver.execute_script("return document.documentElement.scrollWidth")

    def texts(self) -> list[dict[str, Any]]:
        """Return every piece of visible text with its tag, colours, contrast and width."""
        return self.driver.execute_script(COLOURS)

    def broken_words(self, selector: str) -> list[str]:
        """Return the words of the elements of a CSS selector that take more than one line."""
        return self.driver.execute_script(BROKEN, selector)

    def search(self, words: str, page: str, seconds: float = 30) -> None:
        """Type words into the search of the site, and wait until it finds `page`."""
        from selenium.webdriver.common.keys import Keys
        from selenium.webdriver.support.wait import WebDriverWait

        wait = WebDriverWait(self.driver, seconds)
        field = self.driver.find_element("css selector", "[data-md-component=search-query]")
        if not field.is_displayed():
            opener = "label.md-header__button[for=__search]"
            self.driver.find_element("css selector", opener).click()
        wait.until(lambda _: field.is_displayed() and field.is_enabled())
        # In one script, because the results change while the words are typed.
        links = (
            "return [...document.querySelectorAll('a.md-search-result__link')]"
            r".map(a => a.href.replace(/\?[^#]*/, ''))"  # without the words, which it marks
        )
        if field.get_property("value"):
            field.send_keys(Keys.CONTROL + "a", Keys.BACKSPACE)
            wait.until(lambda driver: not driver.execute_script(links), "old results stay")
        field.send_keys(words)
        wait.until(
            lambda driver: any(page in link for link in driver.execute_script(links)),
            f"a search for {words} does not find {page}",
        )

    def complaints(self) -> list[str]:
        """Return what the console has said since it was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> set[str]:
        """Return the addresses that were fetched since it was last asked, without data."""
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        urls = {
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        }
        return {url for url in urls if urlsplit(url).scheme != "data"}


class Browser:
    """A browser that opens pages as a phone does, or as another screen; light or dark."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, scheme: str = "light", screen: tuple[int, int] = PHONE) -> Visit:
        """Open a page in the `scheme` light or dark, with everything unfolded."""
        wide, high = screen
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": True},
        )
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        visit = Visit(self.driver)
        visit.complaints(), visit.requests()  # of the page before
        self.driver.get(url)
        self.driver.execute_script("document.querySelectorAll('details').forEach(e => e.open = 1)")
        return visit


@contextmanager
def started() -> Iterator[Browser]:
    """Start a browser, or skip the test where there is none."""
    selenium = pytest.importorskip("selenium.webdriver")
    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if chromium is None or driver is None:
        pytest.skip("no browser here: apt-get install chromium chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    quiet = (
        "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-sync "
        "disable-dev-shm-usage disable-background-networking disable-component-update"
    )
    for name in quiet.split():
        options.add_argument(f"--{name}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = selenium.ChromeService(driver)
    chrome = selenium.Chrome(options=options, service=service)
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()
