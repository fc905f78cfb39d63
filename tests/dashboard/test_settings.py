"""Settings of the dashboard: read-only for whoever signs in, and a label that says which broker this is."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

from penstock.dashboard.files import Banner, Files
from tests.dashboard.conftest import Dashboard, Shop


def test_a_read_only_dashboard_offers_nothing_and_the_broker_refuses_what_it_is_sent(browser, tmp_path):
    shop = Shop(tmp_path, "--dashboard-read-only", "--dashboard-environment", "production", "--dashboard-color", "red")
    context = browser.new_context()
    shown = Dashboard(shop, context)
    try:
        shown.sign_in()
        expect(shown.page.locator(".environment.red")).to_have_text("production")
        expect(shown.page.get_by_text("This dashboard is read-only")).to_be_visible()
        shown.open("queues/shop.orders", "shop.orders")
        expect(shown.page.get_by_role("table", name="Groups")).to_contain_text("billing")
        for name in ("Push", "Pause", "Purge", "Delete"):
            expect(shown.page.get_by_role("button", name=name, exact=True)).to_have_count(0)
        shown.open("queues/shop.orders/messages", "shop.orders")
        expect(shown.page.get_by_role("table", name="Messages")).to_be_visible()
        assert shown.said == []

        # What the browser's session may not do; keys are not affected.
        cookies = {cookie["name"]: cookie["value"] for cookie in context.cookies()}
        headers = {"x-penstock-tab": shown.page.evaluate("sessionStorage.getItem('penstock-tab')")}
        headers["origin"] = shop.origin
        url = f"{shop.origin}/api/v1/queues/shop.orders/pause"
        assert httpx.post(url, json={}, cookies=cookies, headers=headers).status_code == 403
        shop.do("POST", "/queues/shop.orders/pause")
    finally:
        context.close()
        shop.close()


def test_the_label_is_text_in_the_page_whatever_it_holds(browser):
    page = Files(banner=Banner('"><script>alert(1)</script>', "red")).reply("").content
    assert b"<script>alert" not in page
    assert b"red||&quot;&gt;&lt;script&gt;" in page
