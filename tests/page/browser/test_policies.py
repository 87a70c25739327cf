"""Every page with hostile texts, in Chromium: nothing runs, and the policy forbids nothing of its own."""

from pathlib import Path
from typing import Any

import pytest

from tests.page.pages import PAGES

TEXT = '<img src=x onerror="alert(1)"></script><script>alert(1)</script><style>*{color:red}</style>'


@pytest.mark.parametrize("name", sorted(PAGES.keys() - {"server"}))  # which is tested with one
def test_nothing_runs_and_nothing_is_missing(name: str, browser: Any, tmp_path: Path) -> None:
    file = PAGES[name](TEXT, tmp_path)
    problems: list[str] = []
    page = browser.new_page()
    page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text))
    page.goto(file.as_uri())
    page.wait_for_load_state("load")
    assert page.locator("h1").first.is_visible()
    pictures = page.locator("img").all()
    assert all(picture.evaluate("one => one.complete && one.naturalWidth") for picture in pictures)
    assert bool(pictures) == (name in ("gallery", "labs"))
    page.close()
    assert problems == []
