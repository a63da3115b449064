"""The console in a real browser, beside a server at work: every view, on every screen."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chromium import Chromium
from tests.console.looks import problems
from tests.console.world import HOSTILE, LONG, REPORT, traffic, world
from tests.servers import ServerProcess

from penstock.net.process import free_ports

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
PICTURES = os.environ.get("CONSOLE_PICTURES", "")
"""Where to put the pictures that the documentation shows; `make pictures` sets it."""
SCREENS = [(width, scheme) for width in (1400, 1240, 800, 390) for scheme in ("light", "dark")]
VIEWS = {
    "": "Attention",
    "streams": "ORDERS",
    "streams/SHOP/ORDERS": "orders.placed",
    "streams/SHOP/KV_settings": "theme",
    "streams/SHOP/OBJ_pictures": "cat.png",
    "consumers": "billing",
    "bus": "3 kept",
    "connections": "order-service",
    "connections?state=closed": "Client Closed",
    "pipelines": "orders-archive",
    "accounts": "TEAM",
    "config": "monitor.actions",
}
"""By view, a text that is there when it is whole."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with world() as server, traffic(server.url):
        yield server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with Chromium() as chromium:
        yield chromium


@pytest.fixture
def page(chromium: Chromium, server: ServerProcess) -> Iterator[Chromium]:
    chromium.problems.clear()
    chromium.screen(1400)
    chromium.open("about:blank")
    chromium.call("Network.clearBrowserCookies")
    go(chromium, server)
    chromium.wait_for("Attention")
    yield chromium
    assert [] == chromium.problems


def address(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.http_port}/console"


def go(page: Chromium, server: ServerProcess, view: str = "") -> None:
    page.open(f"{address(server)}#/{view}")


def sign_in(page: Chromium, user: str, password: str = "pw") -> None:
    page.click("#sign-in")
    page.type("dialog input[autocomplete=username]", user)
    page.type("dialog input[type=password]", password)
    page.key("Enter")
    page.wait_for(f"{user} · sign out")


def test_the_console_shows_what_the_server_does(page: Chromium, server: ServerProcess) -> None:
    page.wait_for("shipping loses messages")
    page.wait_for("bus shop has 3 dead letters, the newest of orders.placed with ValueError")
    go(page, server, "streams?search=orders")
    page.wait("document.querySelectorAll('main tbody tr').length === 1")
    row = page.run("document.querySelector('main tbody tr').innerText")

    assert row.split()[:3] == ["ORDERS", "SHOP", "500"]


def test_a_pipeline_is_known_by_its_last_report(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/pipelinez") as answer:
        (known,) = json.load(answer)["pipelines"]

    assert {"account": "SHOP", **REPORT} == {
        name: value for name, value in known.items() if name != "age_s"
    }
    assert 0 <= known["age_s"]


@pytest.mark.parametrize("is_signed_in", [True, False], ids=["ann", "visitor"])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view or "overview")
def test_a_view_is_whole_on_every_screen(
    page: Chromium, server: ServerProcess, view: str, is_signed_in: bool
) -> None:
    if is_signed_in:
        sign_in(page, "ann")
    go(page, server, view)
    is_content = view.startswith("streams/")
    page.wait_for(VIEWS[view] if is_signed_in or not is_content else "Sign in as a user of SHOP")
    found = {}
    for width, scheme in SCREENS:
        page.screen(width, scheme=scheme)
        # Charts are drawn anew for the new size.
        page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        found[width, scheme] = problems(page)

    assert {screen: [] for screen in SCREENS} == found


def test_long_names_push_no_figure_away(page: Chromium, server: ServerProcess) -> None:
    go(page, server, "streams")
    page.wait_for("DEVICES_00")
    seen = page.run(
        "(() => { const table = document.querySelector('main table').getBoundingClientRect();"
        " const card = document.querySelector('main .card').getBoundingClientRect();"
        f" const cut = document.querySelector('main .cut[title=\"{LONG}\"]');"
        " return [table.right <= card.right, cut.scrollWidth > cut.clientWidth]; })()"
    )

    assert [True, True] == seen


def test_nothing_is_left_out_in_silence(page: Chromium, server: ServerProcess) -> None:
    go(page, server, "streams?limit=10")
    page.wait_for("The first 10 of 39.")
    page.click("button", "Show more")
    page.wait_for("The first 20 of 39.")
    page.type("main input[type=search]", "devices_0")
    page.wait_for("10 of 39 match.")


def test_tables_are_sorted_with_the_keyboard(page: Chromium, server: ServerProcess) -> None:
    go(page, server, "streams")
    page.wait_for("DEVICES_00")
    page.run(
        "[...document.querySelectorAll('thead button')]"
        ".find((each) => each.textContent === 'Messages').focus()"
    )
    page.key("Enter")
    page.wait("document.querySelector('main tbody td').innerText.startsWith('PAYMENTS')")
    page.key("/")
    assert "search" == page.run("document.activeElement.type")


def test_the_skip_link_and_all_controls_can_be_reached(page: Chromium) -> None:
    reached = []
    for _ in range(14):
        page.key("Tab")
        reached.append(page.run("document.activeElement.textContent.trim()"))

    assert "To the content" == reached[0]
    assert {"Overview", "Bus", "Config"} <= {each.rstrip("0123456789,") for each in reached}


def test_a_selection_survives_the_next_event(page: Chromium, server: ServerProcess) -> None:
    go(page, server, "streams?search=PAYMENTS")
    page.wait_for("PAYMENTS")
    page.run("getSelection().selectAllChildren(document.querySelector('main tbody td .cut'))")
    figure = "document.querySelectorAll('main tbody td')[2].innerText"
    before = page.run(figure)
    page.wait(f"{figure} !== {json.dumps(before)}")

    assert "PAYMENTS" == page.run("getSelection().toString()")


def test_the_charts_survive_a_reload(page: Chromium) -> None:
    drawn = "document.querySelector('svg.chart .line')?.getAttribute('d').split('L').length > 3"
    page.wait(drawn)
    page.call("Page.reload")
    page.wait_for("Attention")
    page.wait(drawn)
    assert page.run("document.querySelectorAll('svg.chart text').length") > 10


def test_an_account_can_be_chosen(page: Chromium, server: ServerProcess) -> None:
    go(page, server, "accounts")
    page.wait_for("TEAM")
    page.run(
        "[...document.querySelectorAll('main tr')].find((each) => each.innerText.includes('TEAM'))"
        ".querySelector('button').click()"
    )
    go(page, server, "streams")
    page.wait_for("No streams.")
    page.run("sessionStorage.clear()")


def test_what_is_stored_is_never_markup(page: Chromium, server: ServerProcess) -> None:
    sign_in(page, "ann")
    go(page, server, f"streams/SHOP/{LONG}")
    page.click("summary", "#1")
    page.wait_for(HOSTILE)
    go(page, server, "streams")
    page.wait_for("EVENTS_OF_&amp;")

    assert page.run("document.title.startsWith('eu-warehouse-1')")
    assert 0 == page.run("document.querySelectorAll('main img, main b').length")


def test_messages_are_found_and_opened(page: Chromium, server: ServerProcess) -> None:
    sign_in(page, "ann")
    go(page, server, "streams/SHOP/PAYMENTS")
    page.wait_for("payments.card")
    page.click("main .message summary", "#")
    page.wait_for("in base64")
    go(page, server, "streams/SHOP/shop")
    page.wait_for("OrderPlaced · order-9")
    page.click("main .message summary", "#")
    page.wait_for("Payload of the event")
    page.type("input[aria-label='From sequence or time']", "3")
    page.key("Enter")
    page.wait_for("#3")
    page.click("button", "Older")
    page.wait_for("#1")


def test_a_number_that_javascript_cannot_hold_stays_itself(
    page: Chromium, server: ServerProcess
) -> None:
    sign_in(page, "ann")
    go(page, server, "streams/SHOP/shop-dead")
    page.wait_for("shop-dead")
    number = page.run(
        """import("./console/messages.js").then(({messageView}) => {
            const found = {sequence: 1, subject: "s", time: "", size: 1, headers: []};
            const view = messageView({}, "S", {...found, text: '{"id": 9007199254740993}'});
            view.open = true;
            return new Promise((done) => setTimeout(() => done(view.textContent)));
        })"""
    )

    assert "9007199254740993" in number


def test_a_key_has_its_history_and_an_object_its_size(
    page: Chromium, server: ServerProcess
) -> None:
    sign_in(page, "ann")
    go(page, server, "streams/SHOP/KV_settings")
    page.click("summary", "theme")
    page.wait_for('"revision": 2')
    page.click("summary", "limits.eu")
    page.wait_for("deleted")
    go(page, server, "streams/SHOP/OBJ_pictures")
    page.wait_for("cat.png")
    page.wait_for("121 KB")


def test_pictures_for_the_documentation(
    page: Chromium, server: ServerProcess, tmp_path: Path
) -> None:
    folder = Path(PICTURES) if PICTURES else tmp_path
    sign_in(page, "ann")
    for name, view, text, width, scheme in (
        ("overview", "", "Dead letters", 1400, "light"),
        ("stream", "streams/SHOP/ORDERS", "orders.placed", 1400, "dark"),
        ("bus", "bus", "kept", 1400, "light"),
        ("phone", "", "Dead letters", 390, "dark"),
    ):
        page.screen(width, height=900, scheme=scheme)
        go(page, server, view)
        page.wait_for(text)
        page.wait("document.querySelector('main')?.innerText.length > 100")
        if name == "bus":
            page.click("button", "Show them")
            page.click("main .letter summary", "#")
            page.wait_for("attempts, until")
            # Where this machine keeps its source is nobody's business.
            page.run(
                "document.querySelectorAll('main pre').forEach((each) => {"
                f" each.textContent = each.textContent.replaceAll({json.dumps(str(ROOT))}, '/srv');"
                " })"
            )
        page.picture(folder / f"console-{name}.png")
        assert (folder / f"console-{name}.png").stat().st_size > 20_000


def test_figures_of_a_server_that_is_gone_are_grey_and_dated(chromium: Chromium) -> None:
    with world(http_port=free_ports(1)[0]) as server:
        chromium.screen(1400)
        go(chromium, server)
        chromium.wait_for("Attention")
        server.kill()
        chromium.wait_for("The server does not answer. What you see is from")
        shown = chromium.run("getComputedStyle(document.querySelector('main')).filter")
        assert "grayscale(1)" == shown
        server.start()
        chromium.wait("document.querySelector('#gone').hidden")
    chromium.problems.clear()


def test_what_is_done_on_the_page_is_confirmed_by_its_name(chromium: Chromium) -> None:
    with world() as server:
        chromium.problems.clear()
        chromium.screen(390)
        chromium.open("about:blank")
        go(chromium, server)
        sign_in(chromium, "ann")
        go(chromium, server, "streams/SHOP/PAYMENTS")
        chromium.wait_for("payments.card")
        chromium.click("button", "Purge")
        chromium.type("dialog input[aria-label='Type PAYMENTS']", "PAYMENT")
        assert chromium.run("document.querySelector('dialog button[type=submit]').disabled")
        chromium.type("dialog input[aria-label='Type PAYMENTS']", "S")
        chromium.click("dialog button[type=submit]")
        chromium.wait_for("1 messages were purged.")
        go(chromium, server, "bus")
        chromium.click("button", "Show them")
        chromium.click("main .letter input")
        chromium.click("button", "Replay")
        chromium.type("dialog input[aria-label='Type shop']", "shop")
        chromium.key("Enter")
        chromium.wait_for("Replay: 1 done.")
        chromium.wait_for("2 kept")
        chromium.click("#sign-in")
        chromium.wait_for("Signed out.")
        assert "purge 'PAYMENTS'" in server.log
        assert "replay 'shop'" in server.log
        assert [] == chromium.problems
