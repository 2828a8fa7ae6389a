"""The pages that are mostly other people's: the API's and the admin's lists."""

from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from tests.e2e.browser.conftest import PASSWORD, LabelingPage, Site

BRIGHTNESS = """(element) => {
    const [red, green, blue] = getComputedStyle(element).backgroundColor.match(/[0-9.]+/g);
    return (Number(red) + Number(green) + Number(blue)) / (3 * 255);
}"""


def test_the_page_of_the_api_is_as_dark_as_the_system(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/api/docs/")
    html = page.locator("html")
    expect(html).not_to_have_class("dark-mode")
    page.emulate_media(color_scheme="dark")
    expect(html).to_have_class("dark-mode")
    assert html.evaluate(BRIGHTNESS) < 0.2
    page.reload()
    expect(html).to_have_class("dark-mode")
    expect(
        page.get_by_text("Record the labeler's answer to a lease, even if the lease has expired")
    ).to_be_visible()
    page.get_by_role("link", name="RL-Teacher", exact=False).first.click()
    page.wait_for_url(f"{site.url}/accounts/login/?next=/")


def test_admin_search_and_token_on_a_phone(site: Site, page: Page, labeling: LabelingPage) -> None:
    User.objects.create_superuser("root", password=PASSWORD)
    page.goto(f"{site.url}/accounts/login/?next=/admin/feedback/experiment/")
    labeling.sign_in("root")
    page.wait_for_url("**/admin/feedback/experiment/")  # and for the scripts on it
    for wanted in ("Leases", "Sequence counters"):
        page.goto(f"{site.url}/admin/feedback/experiment/")
        link = page.locator("#nav-sidebar").get_by_role("link", name=wanted)
        expect(link).to_be_hidden()
        find = page.locator("#nav-filter")
        find.press_sequentially(wanted[:6])
        expect(link).to_be_visible()
        find.fill("")
        find.press("Escape")
        expect(link).to_be_hidden()
        page.locator("#nav-sidebar summary").click()
        link.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Select")
        expect(link).to_be_visible()  # the fold stays open where the page is of something in it
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{site.url}/admin/feedback/apitoken/add/")
    page.locator("#id_user").select_option(label="root")
    page.locator("[name=_save]").click()
    token = page.locator("#token")
    expect(token).to_be_visible()
    assert token.evaluate("(box) => box.scrollWidth - box.clientWidth") == 0
