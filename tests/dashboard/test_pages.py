"""What single pages show of the broker, beyond what holds for all of them."""

from __future__ import annotations

from playwright.sync_api import expect


def test_the_overview_names_what_is_wrong_first(dashboard):
    problems = dashboard.page.locator(".problems")
    expect(problems).to_contain_text("shop.orders: 3 messages failed for good")
    expect(problems).to_contain_text("legacy: 1 ready, nothing is delivered")


def test_numbers_are_pushed_to_the_page_and_rates_fall_back_to_zero(dashboard, shop):
    dashboard.open("queues", "Queues")
    row = dashboard.row("Queues", "live.counter")
    expect(row).to_have_count(0)

    shop.push("live.counter", *range(12))

    expect(row.locator("td").nth(3)).to_have_text("12")
    shop.push("live.counter", *range(5))
    expect(row.locator("td").nth(3)).to_have_text("17")
    expect(row.locator("td").nth(7)).to_have_text("0", timeout=30_000)


def test_a_link_is_the_view(dashboard):
    dashboard.open("queues?q=shop&sort=-ready", "Queues")
    expect(dashboard.page.get_by_label("Filter by name")).to_have_value("shop")
    table = dashboard.page.get_by_role("table", name="Queues")
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table.get_by_role("columnheader", name="Ready")).to_have_attribute("aria-sort", "descending")


def test_payloads_are_shown_as_they_are_and_never_interpreted(dashboard, shop):
    page = dashboard.page
    shown = []
    for message in shop.do("GET", "/queues/hostile/messages?limit=10")["messages"]:
        dashboard.open(f"messages/{message['id']}", message["id"])
        shown.append(page.get_by_label("Payload", exact=True).inner_text())

    assert any('"<img src=x onerror=alert(1)><script>alert(2)</script>"' in text for text in shown)
    assert any("123456789012345678901234567890" in text for text in shown)
    assert any("fe ff 00 01" in text for text in shown)
    assert any("right to left" in text for text in shown)
    assert any(text.startswith('{\n  "blob"') and len(text) < 300_000 for text in shown)
    assert page.locator("main img, main script").count() == 0


def test_dead_letters_are_grouped_by_cause_with_what_they_share_and_the_healthy_do_not(dashboard, shop):
    shop.push("triage", *({"order": number, "currency": None} for number in range(3)))
    shop.fail("triage", "TypeError: currency of order 7 is None")
    shop.push("triage", *({"order": number, "currency": "EUR"} for number in range(20)))
    leased = shop.do("POST", "/queues/triage/lease", {"max": 100})["messages"]
    shop.do("POST", "/ack", {"receipts": [message["receipt"] for message in leased]})
    dashboard.open("dlq", "Dead letters")
    row = dashboard.row("Causes", "triage")
    expect(row).to_contain_text("currency = null")
    row.get_by_role("link", name="TypeError").click()
    page = dashboard.page
    expect(page.locator(".shares")).to_contain_text("100 % failed")
    expect(page.locator(".shares")).to_contain_text("0 % healthy")

    page.get_by_role("button", name="Edit and redrive").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Change to every payload").fill('{"currency": "EUR"}')
    dialog.get_by_role("button", name="Edit and redrive").click()
    expect(dialog).to_contain_text("3 of 3 done")
    newest = shop.do("GET", "/queues/triage/peek?limit=10")["messages"]
    assert [message["payload"]["currency"] for message in newest] == ["EUR"] * 3


def test_a_page_that_does_not_exist_says_so(dashboard):
    dashboard.page.goto(f"{dashboard.shop.origin}/ui/nowhere")
    expect(dashboard.page.get_by_text("There is no such page")).to_be_visible()
