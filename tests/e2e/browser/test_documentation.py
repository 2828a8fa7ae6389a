"""The documentation's own additions to Sphinx, in a browser: search, pictures and copy buttons."""

import gc
import shutil
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[3]
PAGES = ("crowd.md", "gallery.md")


def built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build two pages of the documentation, as fast as Sphinx can."""
    monkeypatch.setattr(gc, "set_threshold", lambda *_: None)
    monkeypatch.syspath_prepend(str(ROOT))
    from docs import conf

    for name in PAGES:
        shutil.copy(ROOT / "docs" / name, folder)
    (folder / "pictures").symlink_to(ROOT / "docs" / "pictures")
    (folder / "index.md").write_text("# Documentation\n\n```{toctree}\ncrowd\ngallery\n```\n")
    settings = {
        "extensions": conf.extensions,
        "copybutton_selector": conf.copybutton_selector,
        "html_search_scorer": conf.html_search_scorer,
        "html_theme": "basic",
        "html_show_search_summary": False,
        "suppress_warnings": ["myst.xref_missing"],
    }
    app = Sphinx(
        folder, None, folder / "html", folder / "trees", "html", settings, status=None, warning=sys.stderr
    )
    conf.add_hooks(app)
    app.build()
    return folder / "html"


@pytest.mark.filterwarnings("ignore:.*Check CHANGES for Sphinx API modifications")
def test_a_setting_is_found_first_and_pictures_open_full_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser
) -> None:
    site = built(tmp_path, monkeypatch).as_uri()
    page = browser.new_page()
    page.goto(f"{site}/search.html?q=overlap")
    results = page.locator("#search-results li a")
    expect(results.first).to_have_text("overlap")
    results.first.click()
    expect(page.locator(":target")).to_contain_text("overlap")
    assert page.url.partition("#")[2] == "setting-overlap"
    picture = page.locator("a.picture", has=page.get_by_alt_text("The experiment page"))
    assert str(picture.get_attribute("href")).endswith("_images/experiment.png")
    page.goto(f"{site}/gallery.html")
    commands = page.locator(".highlight", has_text="teach -p synth").first
    expect(commands.get_by_role("button", name="Copy")).to_have_count(1)
    page.close()
