"""The labeling page on a slow connection says how long a pair takes, and keeps what has come."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Request, expect

from tests.e2e.browser.conftest import LabelingPage, Site

SIZE, CUT = 60_000, 5_000
BYTES_PER_SECOND = 50_000
BREAKS = f"""
    const whole = window.fetch;
    let breaks = 2;
    window.fetch = async (url, options) => {{
      const reply = await whole(url, options);
      if (!/media.|[.]mp4/.test(url) || !breaks) return reply;
      breaks -= 1;
      const value = new Uint8Array(await reply.arrayBuffer());
      const pull = (controller) => controller.error(new TypeError("network error"));
      const start = (controller) => controller.enqueue(value.slice(0, {CUT}));
      const broken = new ReadableStream({{ start, pull }}, {{ highWaterMark: 0 }});
      return new Response(broken, {{ status: reply.status, headers: reply.headers }});
    }};
"""


@pytest.fixture
def heavy(site: Site, tmp_path: Path) -> Site:
    """The site with clips of 60 kB: a box that players skip fills them up."""
    clips = []
    for clip in site.clips:
        short = clip.read_bytes()
        rest = SIZE - len(short)
        clips.append(tmp_path / clip.name)
        clips[-1].write_bytes(short + rest.to_bytes(4, "big") + b"free" + bytes(rest - 8))
    site.clips = (clips[0], clips[1])
    return site


@pytest.mark.parametrize("storage", ["folder", "s3"], indirect=True)
def test_a_download_that_broke_off_goes_on(heavy: Site, labeling: LabelingPage) -> None:
    heavy.add(2)
    page, asked = labeling.page, list[Request]()
    page.on("request", lambda request: asked.append(request) if is_clip(request) else None)
    page.add_init_script(BREAKS)
    labeling.open(heavy.invite())
    parts = {request.url: request.headers["range"] for request in asked if "range" in request.headers}
    assert parts == {request.url: f"bytes={CUT}-" for request in asked[:2]}
    labeling.press("ArrowLeft")
    labeling.expect_saved(1)


def test_the_page_says_how_long_the_next_pair_takes(heavy: Site, labeling: LabelingPage) -> None:
    heavy.add(3)
    page, asked = labeling.page, set[str]()
    labeling.open(heavy.invite())
    page.goto("about:blank")
    network = page.context.new_cdp_session(page)
    conditions = {"offline": False, "latency": 0, "uploadThroughput": -1}
    network.send("Network.emulateNetworkConditions", {**conditions, "downloadThroughput": BYTES_PER_SECOND})
    page.on("request", lambda request: asked.add(request.url) if is_clip(request) else None)
    page.goto(heavy.label_url)
    expect(page.locator("#rest")).to_have_text(re.compile(r"Slow connection: about \d+ s"))
    assert len(asked) == 2  # the first pair alone
    network.send("Network.emulateNetworkConditions", {**conditions, "downloadThroughput": -1})
    labeling.wait_for("judging")


def is_clip(request: Request) -> bool:
    return "/media/" in request.url or ".mp4" in request.url
