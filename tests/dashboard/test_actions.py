"""What the page does: with the mouse, with the keyboard, and only what its user may."""

from __future__ import annotations

from playwright.sync_api import expect


def test_a_queue_is_created_pushed_to_paused_and_deleted(dashboard, shop):
    page = dashboard.page
    dashboard.open("queues", "Queues")
    page.get_by_role("button", name="Create a queue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name").fill("made.here")
    expect(dialog).to_contain_text("penstock queues create made.here")
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("made.here")

    page.get_by_role("button", name="Push", exact=True).click()
    dialog.get_by_role("textbox", name="Payload").fill('{"id": 9007199254740993}')
    dialog.get_by_role("button", name="Push", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Pushed as made.here/0/0")

    page.get_by_role("button", name="Pause").click()
    dialog.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_text("This queue is paused")).to_be_visible()

    page.get_by_role("button", name="Delete").click()
    expect(dialog.get_by_role("button", name="Delete", exact=True)).to_be_disabled()
    dialog.get_by_role("textbox", name="to confirm").fill("made.here")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    assert shop.api.get("/queues/made.here").status_code == 404


def test_a_refusal_is_shown_in_the_dialog_and_nothing_is_lost(dashboard):
    page = dashboard.page
    dashboard.open("queues", "Queues")
    page.get_by_role("button", name="Create a queue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name").fill("not:allowed")
    dialog.get_by_role("button", name="Create", exact=True).click()

    expect(dialog.get_by_role("alert")).to_contain_text("not:allowed")
    expect(dialog.get_by_role("textbox", name="Name")).to_have_value("not:allowed")
    dashboard.ignore_network()  # the browser itself notes the status 400


def test_the_page_says_what_is_wrong_with_what_was_typed(dashboard):
    page = dashboard.page
    dashboard.open("queues/shop.orders/options", "shop.orders")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("{")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("This cannot be sent")


def test_one_cause_of_dead_letters_is_redriven(dashboard, shop):
    shop.push("redrive.me", 1, 2)
    shop.fail("redrive.me", "gone")
    dashboard.open("dlq?queue=redrive.me", "Dead letters")
    dashboard.row("Causes", "gone").get_by_role("button", name="Redrive").click()
    dialog = dashboard.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Redrive 2 dead letters")
    dialog.get_by_role("button", name="Redrive", exact=True).click()

    expect(dialog).to_contain_text("2 of 2 done")
    assert shop.do("GET", "/queues/redrive.me/stats")["groups"]["default"]["ready"] == 2


def test_everything_can_be_done_with_the_keyboard(dashboard):
    page = dashboard.page
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    dashboard.type_filter("legacy")
    page.keyboard.press("Tab")
    page.evaluate("document.activeElement.blur()")
    expect(page.get_by_role("table", name="Queues").get_by_role("row")).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_text("1 queue selected")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("legacy")
    page.keyboard.press("Control+k")
    page.keyboard.type("shop.ord")
    expect(page.get_by_role("option", name="shop.orders").first).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("shop.orders")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Next and previous row")


def test_a_viewer_sees_numbers_and_no_payloads_and_is_offered_nothing_to_change(opener):
    shown = opener()
    shown.sign_in_as("viewer")
    shown.open("queues/shop.orders", "shop.orders")
    expect(shown.page.get_by_role("table", name="Groups")).to_contain_text("billing")
    for name in ("Push", "Pause", "Purge", "Delete"):
        expect(shown.page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    shown.open("queues/shop.orders/messages", "shop.orders")
    expect(shown.page.get_by_role("alert")).to_contain_text("ask an owner for the grant read:shop.orders")
    shown.ignore_network()  # the browser itself notes the status 403


def test_a_reader_of_some_queues_sees_no_others(opener):
    shown = opener()
    shown.sign_in_as("reader")
    shown.open("queues", "Queues")
    expect(shown.row("Queues", "shop.orders")).to_have_count(1)
    expect(shown.row("Queues", "legacy")).to_have_count(0)
    shown.ignore_network()  # the browser itself notes the refusals of what only operators may see


def test_the_page_survives_a_broker_that_is_killed_and_comes_back(dashboard, shop):
    page = dashboard.page
    dashboard.open("queues", "Queues")
    expect(dashboard.row("Queues", "shop.orders")).to_have_count(1)

    shop.served.__exit__()
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached", timeout=60_000)
    expect(dashboard.row("Queues", "shop.orders")).to_have_count(1)

    shop.start()
    # Sessions are kept in memory: after a restart people sign in again.
    expect(page.get_by_role("heading", name="Sign in to Penstock")).to_be_visible(timeout=60_000)
    page.goto(shop.link())
    expect(page.locator(".who")).to_contain_text("owner")
    dashboard.ignore_network()  # the browser itself notes that it could not connect
