"""The page in a real browser: Debian's Chromium, headless, before a gateway with forks in its ledger."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Route, expect

from tests.observatory.visits import tab_to, visiting
from tests.support.forking import FORK, GUARD_KEY, HOSTILE, LEFT, RIGHT, SHARED, ForkingVllm, address, ask, fill, words
from tests.support.running import RunningGateway, running_gateway
from tests.support.scripted import ScriptedVllm

pytestmark = pytest.mark.anyio

_CONTRAST = """(selectors) => {
  const luminance = ([r, g, b]) => {
    const part = (value) => (value <= 10.31475 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const colour = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = colour(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  return selectors.map((selector) => {
    const node = document.querySelector(selector);
    const pair = [colour(getComputedStyle(node).color), behind(node)].map(luminance).sort((a, b) => b - a);
    return [selector, (pair[0] + 0.05) / (pair[1] + 0.05)];
  });
}"""


async def test_the_overview_shows_rates_and_replicas(
    browser: Browser, observed: RunningGateway, forking: ForkingVllm
) -> None:
    """Rates by mode with their bounds, suspects, margins, the replica with its posture, and the run; and no noise."""
    async with visiting(browser, observed) as visit:
        page = await visit.open()

        rows = page.locator("#rates tbody tr")
        await expect(rows.nth(0)).to_contain_text("standard")
        await expect(rows.nth(0)).to_contain_text("50.0 %, below 90.3 % (95 %)")
        await expect(rows.filter(has_text="isolated")).to_contain_text("below 52.8 % (95 %)")
        await expect(rows).to_have_count(2)
        await expect(page.locator("#unmeasured")).to_have_text(
            "Nothing to compare yet in seeded, invariant, hardened, verified."
        )
        await expect(page.locator("#verdict")).to_have_text(
            "Deterministic modes: 0 of 4 diverged, below 52.8 % (95 %); too few to claim more."
        )
        await expect(page.locator("#headline")).to_have_attribute("data-level", "idle")
        await expect(page.locator("#beside")).to_contain_text("standard: 2 of 4 diverged. Counts are of all origins")
        await expect(page.locator("#causes [data-label=co_batched]")).to_contain_text("2 · 100 %")
        await expect(page.locator("#margins [data-label=tie]")).to_contain_text("1 · 50 %")
        await expect(page.locator("#positions svg")).to_have_attribute("aria-label", "Forks by shared tokens: 16: 2.")
        card = page.locator(".replica")
        await expect(card).to_contain_text(forking.url.removeprefix("http://"))
        await expect(card).to_contain_text("healthy")
        await expect(card.locator(".refused")).to_contain_text("batch_invariance is off")
        await expect(page.locator("#latest li")).to_have_count(2)
        await expect(page.locator("#runs")).to_contain_text("evening")
        await visit.shoot("overview")
        await visit.check()


async def test_the_switch_takes_canaries_out(browser: Browser, observed: RunningGateway) -> None:
    """Without clients' answers nothing is left to count here, and no row moves."""
    async with visiting(browser, observed) as visit:
        page = await visit.open()
        rows = page.locator("#rates tbody tr")
        before = await rows.count()
        await page.get_by_label("Canaries").check()

        await expect(rows.nth(0)).to_contain_text("nothing compared yet")
        await expect(page.locator("#verdict")).to_have_text("Nothing of canaries has been compared yet.")
        await expect(page.locator("#beside")).to_contain_text("Counts are of canaries alone")
        await expect(page.locator("#facts")).to_contain_text("deterministic modes nothing compared")
        await expect(page.locator("#latest li")).to_have_count(0)
        await expect(page.locator("#positions-note")).to_contain_text("of all origins")
        assert before == await rows.count()
        await page.get_by_role("link", name="Forks", exact=True).click()
        await expect(page.locator("#cohorts-empty")).to_have_text("No cohort here has a distinct answer of canaries.")
        await page.get_by_label("Clients").check()
        await expect(page.locator("#cohorts li")).to_have_count(2)
        await expect(page.locator("#origin-note")).to_contain_text("Those with a distinct answer of clients, among")
        await visit.check()


async def test_exclusive_phases_are_drawn_and_listed(
    browser: Browser, observed: RunningGateway, forking: ForkingVllm
) -> None:
    """The guard's log becomes bars of the timeline and, for readers, a table with links to receipts."""
    async with visiting(browser, observed) as visit:
        page = await visit.open()
        now = await page.evaluate("Date.now() / 1000")
        forking.phase(now - 9, now - 8, now - 6, admission="exclusive")
        forking.phase(now - 5, now - 5, now - 4, admission="shared", peak=3)
        forking.phase(now - 3, now - 2.5, None, admission="exclusive")

        await expect(page.locator(".timeline rect.exclusive")).to_have_count(2)
        await page.locator(".replica summary").click()
        table = page.locator(".phases tbody tr")
        await expect(table).to_have_count(2)
        await expect(table.nth(0)).to_contain_text("runs")
        await expect(table.nth(1)).to_contain_text("1.0 s2.0 snothing")
        await expect(page.locator(".words")).to_contain_text("2 exclusive phases, longest wait 1.0 s")
        await visit.check()


async def test_a_fork_is_shown_with_both_sides(browser: Browser, observed: RunningGateway) -> None:
    """The shared start is dimmed, the words that part are marked, and what differed around them stands out."""
    async with visiting(browser, observed) as visit:
        page = await visit.open_fork("1 of 3 diverged")

        await expect(page.locator(".lead")).to_contain_text(f"B parts from A after {FORK} shared tokens")
        await expect(page.locator(".lead")).to_contain_text("0.0625 nats apart there, a tie")
        await expect(page.locator(".lead")).to_contain_text("First suspect: co-batched")
        left, right = page.locator(".text pre").nth(0), page.locator(".text pre").nth(1)
        assert f"{SHARED} " == await left.locator(".same").text_content() == await right.locator(".same").text_content()
        assert await page.locator(".text mark").all_text_contents() == ["elect", "vote"]
        assert await left.text_content() == LEFT
        assert await right.text_content() == RIGHT
        differing = page.locator(".circumstances tr[data-differs]")
        await expect(differing).to_have_text(
            ["batch differsalonewith 7 others at most", "prefix cache differscoldwarm: 48 prompt tokens"]
        )
        await visit.shoot("fork")
        await visit.check()


async def test_a_receipt_is_one_link_away(browser: Browser, observed: RunningGateway) -> None:
    """The request id of each side leads to its signed receipt."""
    async with visiting(browser, observed) as visit:
        page = await visit.open_fork("1 of 3 diverged")
        links = await page.locator(".circumstances a").evaluate_all("(links) => links.map((link) => link.href)")
        receipts = [await (await page.request.get(link)).json() for link in links]

        assert len(receipts) == 2
        assert all(
            link.endswith(receipt["receipt"]["request_id"]) for link, receipt in zip(links, receipts, strict=True)
        )


async def test_an_address_leads_to_a_fork(browser: Browser, observed: RunningGateway) -> None:
    """The address of a fork opens it again elsewhere, and one that leads nowhere says so."""
    async with visiting(browser, observed) as visit:
        page = await visit.open_fork("1 of 3 diverged")
        fragment = await page.evaluate("location.hash")
    async with visiting(browser, observed) as visit:
        page = await visit.open(fragment)
        await expect(page.locator(".lead")).to_contain_text("B parts from A")
        await visit.check()
        await page.goto(f"{address(observed)}#/forks/none/standard/p")
        alert = page.locator("#detail [role=alert]")
        await expect(alert).to_have_text("There is no such cohort.")
        around = await alert.evaluate("(node) => getComputedStyle(node.parentElement).backgroundColor")
        assert around == "rgba(0, 0, 0, 0)"


async def test_keys_lead_to_a_fork_and_back(browser: Browser, observed: RunningGateway) -> None:
    """Tab, arrows, Enter and Escape are enough, and the focus is always seen and where one expects it."""
    async with visiting(browser, observed) as visit:
        page = await visit.open()
        await tab_to(page, "nav a[data-view=forks]")
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        await page.keyboard.press("Enter")
        await expect(page.locator("#cohorts li")).to_have_count(2)
        await tab_to(page, "#cohorts li:first-child a")
        await page.keyboard.press("ArrowDown")
        await expect(page.locator("#cohorts li:nth-child(2) a")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#detail h2")).to_be_focused()
        await expect(page.locator("#cohorts li:nth-child(2) a")).to_have_attribute("aria-current", "true")
        await page.keyboard.press("Escape")

        await expect(page.locator("#cohorts li:nth-child(2) a")).to_be_focused()
        await expect(page.locator("#detail")).to_contain_text("Choose a cohort")
        assert outline == "solid"
        await visit.check()


async def test_hostile_answers_stay_text(browser: Browser, observed: RunningGateway) -> None:
    """Markup in an answer is shown, never obeyed."""
    async with visiting(browser, observed) as visit:
        page = await visit.open_fork("1 of 1 diverged")

        assert await page.locator(".text pre").nth(0).text_content() == HOSTILE + "∎ ends here"
        assert await page.locator("#detail img").count() == 0
        assert await page.evaluate("window.harmed === undefined")
        await visit.shoot("hostile")
        await visit.check()


async def test_each_output_can_be_set_beside_the_reference(
    browser: Browser, forking: ForkingVllm, tmp_path: Path
) -> None:
    """A cohort of three outputs: the letters choose which is compared, and keep the focus; a long start is folded."""
    start = " ".join(f"word{number}" for number in range(200))
    forking.script.extend([words(f"{start} one"), words(f"{start} two"), words(f"{start[:-1]}x three", cached=16)])
    forking.script.popleft()
    async with (
        running_gateway(tmp_path, forking.url, ledger=True, keep_texts=True, guard_key=GUARD_KEY) as gateway,
        visiting(browser, gateway) as visit,
    ):
        for _ in range(3):
            await ask(gateway, "be long")
        page = await visit.open_fork("2 of 2 diverged")
        await expect(page.locator(".lead")).to_contain_text("B parts from A after 200 shared tokens")
        await page.get_by_role("link", name="C, compare with the reference").press("Enter")

        await expect(page.locator(".lead")).to_contain_text("C parts from A after 199 shared tokens")
        await expect(page.locator(".lead")).to_contain_text("First suspect: cache state")
        await expect(page.get_by_role("link", name="C, compare with the reference")).to_be_focused()
        left = page.locator(".text pre").nth(0)
        await expect(left).to_contain_text("characters before")
        await left.get_by_role("button").click()
        await expect(left).to_have_text(f"{start} one")
        await visit.check()


async def test_a_long_text_that_did_not_come_along_is_asked_for(
    browser: Browser, forking: ForkingVllm, tmp_path: Path
) -> None:
    """Of many long outputs only some texts are told at once; whichever is chosen, its text is shown."""
    forking.script.extend(words(f"{letter * 60_000} end") for letter in "abcdefg")
    forking.script.popleft()
    async with (
        running_gateway(tmp_path, forking.url, ledger=True, keep_texts=True, guard_key=GUARD_KEY) as gateway,
        visiting(browser, gateway) as visit,
    ):
        for _ in range(7):
            await ask(gateway, "be long")
        page = await visit.open_fork("6 of 6 diverged")
        texts = page.locator(".text pre")
        await expect(texts.nth(1)).to_contain_text("bbb")
        for letter in ("G", "F", "B"):
            await page.get_by_role("link", name=f"{letter}, compare with the reference").press("Enter")
            await expect(texts.nth(0)).to_contain_text("aaa")
            await expect(texts.nth(1)).to_contain_text(letter.lower() * 3)
            await expect(page.get_by_role("link", name=f"{letter}, compare with the reference")).to_be_focused()
        asked = [url for url in visit.asked if "/api/cohorts/" in url]
        assert any("with=" in url for url in asked)
        await visit.check()


@pytest.mark.parametrize(
    ("left", "right", "at", "marks"),
    [
        ("the cat", "the dog", 4, ["cat", "dog"]),
        ("a later time", "a lately", 6, ["r", "ly"]),
        ("ends", "ends here", 4, ["", " here"]),
        ("one\ntwo", "one two", 3, ["\n", " two"]),
        ("\U0001f600a", "\U0001f600b", 1, ["a", "b"]),
        ("x=1;", "x=2;", 2, ["1", "2"]),
        ("same", "same", 4, ["", ""]),
    ],
)
async def test_the_place_where_two_texts_part_is_marked(
    left: str, right: str, at: int, marks: list[str], browser: Browser, gateway: RunningGateway
) -> None:
    """The mark begins at the first character that differs, counted as Python counts, and ends with its word."""
    async with visiting(browser, gateway) as visit:
        page = await visit.open()
        found = await page.evaluate(
            "async ([left, right]) => (await import('/observatory/compare.js')).forkOf(left, right)", [left, right]
        )

    assert found["at"] == at
    assert [found[side]["mark"] for side in ("left", "right")] == marks
    assert left == "".join([*found["shared"], found["left"]["mark"], *found["left"]["rest"]])
    assert found["equal"] == (left == right)


async def test_signs_that_hide_are_named(browser: Browser, forking: ForkingVllm, tmp_path: Path) -> None:
    """Controls and marks of direction could feign another text, so they are shown by name."""
    forking.script.extend([words("one\u202etwo \x07 three"), words("one\u202etwo \x07 four")])
    forking.script.popleft()
    async with (
        running_gateway(tmp_path, forking.url, ledger=True, keep_texts=True, guard_key=GUARD_KEY) as gateway,
        visiting(browser, gateway) as visit,
    ):
        await ask(gateway, "be strange")
        await ask(gateway, "be strange")
        page = await visit.open_fork("1 of 1 diverged")

        await expect(page.locator(".text pre").nth(0)).to_have_text("one⟨U+202E⟩two ␇ three")
        await visit.check()


async def test_the_parts_of_an_answer_are_told_apart(browser: Browser, forking: ForkingVllm, tmp_path: Path) -> None:
    """Reasoning comes before the text, as it was generated, with a mark between them and a line that names them."""
    forking.script.extend([words("yes", reasoning="I think so"), words("yes", reasoning="I think not")])
    forking.script.popleft()
    async with (
        running_gateway(tmp_path, forking.url, ledger=True, keep_texts=True, guard_key=GUARD_KEY) as gateway,
        visiting(browser, gateway) as visit,
    ):
        await ask(gateway, "think")
        await ask(gateway, "think")
        page = await visit.open_fork("1 of 1 diverged")

        assert await page.locator(".text mark").all_text_contents() == ["so", "not"]
        assert await page.locator(".text pre").all_text_contents() == ["I think so\n␞\nyes", "I think not\n␞\nyes"]
        await expect(page.locator(".texts .about")).to_contain_text(
            ["A is reasoning, text; B is reasoning, text.", "Marked are the characters"]
        )
        await visit.check()


@pytest.mark.parametrize(
    ("kept", "texts"),
    [
        ('["a", "b"]', [["a", ["text"]], ["b", ["text"]]]),
        ('[{"reasoning": "r", "text": "a"}, ""]', [["r\x1ea", ["reasoning", "text"]], ["", []]]),
        ('[{"refusal": "no", "tool_calls": [["f", "{}"]]}]', [["no\x1ef\x1e{}", ["refusal", "tool call"]]]),
        *((kept, None) for kept in ('{"text": "a"}', "[1, 2", "[null]", '[{"text": 1}]', "3")),
    ],
)
async def test_kept_texts_are_read_as_the_gateway_reads_them(
    kept: str, texts: list[Any] | None, browser: Browser, gateway: RunningGateway
) -> None:
    """Texts alone, or parts by name, joined as forks are counted; what is neither is no text."""
    async with visiting(browser, gateway) as visit:
        page = await visit.open()
        found = await page.evaluate("async (text) => (await import('/observatory/compare.js')).textsOf({ text })", kept)

    assert (found and [[choice["text"], choice["parts"]] for choice in found]) == texts


async def test_without_texts_positions_are_shown(browser: Browser, forking: ForkingVllm, tmp_path: Path) -> None:
    """Digests, fork and margin are there, and the page says how texts would be kept."""
    async with (
        running_gateway(tmp_path, forking.url, ledger=True, guard_key=GUARD_KEY) as gateway,
        visiting(browser, gateway) as visit,
    ):
        await fill(forking, gateway)
        page = await visit.open_fork("1 of 3 diverged")

        await expect(page.locator(".texts .empty")).to_contain_text("REPRISE_KEEP_TEXTS=1")
        await expect(page.locator(".outputs tbody tr").nth(1)).to_contain_text(f"fork at {FORK}")
        await expect(page.locator(".outputs tbody tr").nth(1)).to_contain_text("tie, 0.0625 nats")
        await expect(page.locator(".text pre")).to_have_count(0)
        await visit.shoot("fork-without-texts")
        await visit.check()


async def test_a_fork_that_is_known_to_its_block_is_shown_as_that(
    browser: Browser, forking: ForkingVllm, tmp_path: Path
) -> None:
    """After a restart the reference is known by its digests: the page says from where on, and draws no exact fork."""
    options: dict[str, Any] = {"ledger": True, "guard_key": GUARD_KEY}
    async with running_gateway(tmp_path, forking.url, **options) as gateway:
        await ask(gateway, "why consensus?", "isolated")
    forking.script.append(words(RIGHT))
    forking.script.popleft()
    async with running_gateway(tmp_path, forking.url, **options) as gateway, visiting(browser, gateway) as visit:
        await ask(gateway, "why consensus?", "isolated")
        page = await visit.open_fork("1 of 1 diverged")

        await expect(page.locator(".lead")).to_contain_text("in the 64 tokens from token 0 on")
        row = page.locator(".outputs tbody tr").nth(1)
        await expect(row).to_contain_text("fork from 0")
        await expect(row.locator(".ruler .somewhere")).to_have_count(1)
        await expect(row.locator(".ruler .apart")).to_have_count(0)
        await expect(row).to_contain_text("not known: digests only")
        await expect(page.locator(".lead")).to_contain_text("the reference was known by its digests only")
        receipts = page.locator(".circumstances tr").last.locator("td")
        await expect(receipts.nth(0)).to_have_text("no receipt: from an earlier process")
        await expect(receipts.nth(1).locator("a")).to_have_count(1)
        await expect(page.locator("#cohorts li")).to_contain_text(
            "1 of 1 diverged, 2 outputs, in part before this process"
        )
        await visit.shoot("fork-in-a-block")
        await visit.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_colours_can_be_read(scheme: str, browser: Browser, observed: RunningGateway) -> None:
    """In both schemes every kind of text has the contrast of WCAG AA, 4.5 to 1."""
    overview = [".about", ".verdict", ".facts", "#rates tbody small", ".empty", ".words", ".live", ".timeline + .words"]
    viewer = [".lead", ".text .same", ".text[data-side=left] mark", ".text[data-side=right] mark", ".differs", ".faint",
              "#cohorts a[aria-current] .numbers", ".outputs small", "a.letter[data-side=right]"]  # fmt: skip
    async with visiting(browser, observed, color_scheme=scheme) as visit:
        page = await visit.open()
        measured = await page.evaluate(_CONTRAST, overview)
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        await visit.shoot(f"overview-{scheme}")
        page = await visit.open_fork("1 of 3 diverged")
        measured += await page.evaluate(_CONTRAST, viewer)
        await visit.shoot(f"fork-{scheme}")

    assert {selector: ratio for selector, ratio in measured if ratio < 4.5} == {}
    assert (scheme == "dark") == (int(ground.removeprefix("rgb(").split(",")[0]) < 64)


async def test_a_narrow_screen_needs_no_sideways_scrolling(browser: Browser, observed: RunningGateway) -> None:
    """At 390 px list and viewer take turns, and everything fits."""
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    async with visiting(browser, observed, viewport={"width": 390, "height": 844}) as visit:
        page = await visit.open()
        overflow = [await page.evaluate(wide)]
        rows = page.locator("#rates tbody tr")
        overlaps = await rows.evaluate_all("(rows) => rows.filter((row) => row.scrollHeight > row.clientHeight).length")
        await visit.shoot("overview-narrow")
        page = await visit.open_fork("1 of 3 diverged")
        overflow.append(await page.evaluate(wide))
        await expect(page.locator("#cohorts")).to_be_hidden()
        await visit.shoot("fork-narrow")
        await page.get_by_role("link", name="All cohorts").click()
        await expect(page.locator("#cohorts")).to_be_visible()
        await expect(page.locator("#detail")).to_be_hidden()
        overflow.append(await page.evaluate(wide))
        await visit.check()

    assert overflow == [0, 0, 0]
    assert overlaps == 0


async def test_an_empty_gateway_says_what_to_do(browser: Browser, upstream: ScriptedVllm, tmp_path: Path) -> None:
    """With nothing measured yet the page names the settings that measure."""
    async with (
        running_gateway(tmp_path, upstream.url, ledger=True) as gateway,
        visiting(browser, gateway) as visit,
    ):
        page = await visit.open()

        await expect(page.locator("#verdict")).to_have_text("Nothing has been compared yet.")
        await expect(page.locator("#rates-empty")).to_contain_text("REPRISE_CANARY_INTERVAL=30")
        await expect(page.locator("#latest-empty")).to_be_visible()
        await expect(page.locator("#runs-empty")).to_contain_text("x-determinism-run")
        await expect(page.locator(".timeline")).to_contain_text("known with the guard only")
        await visit.shoot("empty")
        await visit.check()


async def test_a_ledger_in_memory_is_said(browser: Browser, gateway: RunningGateway) -> None:
    """Where cohorts cannot be listed the page says why, and asks for none."""
    async with visiting(browser, gateway) as visit:
        page = await visit.open()

        await expect(page.locator("#latest-empty")).to_contain_text("REPRISE_LEDGER=1")
        await visit.check()
        assert not [url for url in visit.asked if "/api/cohorts" in url or "/api/runs" in url]


async def test_an_alarm_is_the_first_thing_seen(browser: Browser, forking: ForkingVllm, tmp_path: Path) -> None:
    """A divergence in a deterministic mode turns the headline and its row."""
    forking.script.extend([words(LEFT, margins={FORK: 2.5}), words(RIGHT, margins={FORK: 2.5})])
    forking.script.popleft()
    async with (
        running_gateway(tmp_path, forking.url, ledger=True, guard_key=GUARD_KEY) as gateway,
        visiting(browser, gateway) as visit,
    ):
        await ask(gateway, "be exact", "isolated")
        await ask(gateway, "be exact", "isolated")
        page = await visit.open()

        await expect(page.locator("#headline")).to_have_attribute("data-level", "bad")
        await expect(page.locator("#verdict")).to_have_text(
            "Answers diverged in a deterministic mode (isolated): 1 of 1 diverged, 100 %; 1 in the last 1 min."
        )
        await expect(page.locator("#rates tr[data-level=bad]")).to_contain_text("isolated")
        await expect(page.locator("#margins [data-label=clear]")).to_contain_text("1 · 100 %")
        await visit.shoot("alarm")
        await visit.check()


async def test_an_error_is_shown_and_passes(browser: Browser, observed: RunningGateway) -> None:
    """A gateway that fails is named as failing, its last figures stay, and the page recovers by itself."""
    failing = True

    async def perhaps(route: Route) -> None:
        if failing:
            await route.fulfill(status=500, json={"error": {"message": "The gateway failed; its log has the cause."}})
        else:
            await route.continue_()

    async with visiting(browser, observed) as visit:
        page = await visit.open()
        await page.route("**/api/state", perhaps)
        await expect(page.locator("#problem")).to_have_text("The gateway failed; its log has the cause.")
        await expect(page.locator("#live")).to_contain_text("last answer")
        await expect(page.locator("#verdict")).to_contain_text("No answer from the gateway; all figures are those of")
        await page.get_by_label("Clients").check()
        await expect(page.locator("#headline")).to_have_attribute("data-level", "warn")
        await expect(page.locator("#rates tbody tr").nth(0)).to_contain_text("standard")
        await visit.shoot("error")
        failing = False

        await expect(page.locator("#problem")).to_be_hidden()
        await expect(page.locator("#verdict")).to_contain_text("Deterministic modes: 0 of 4 diverged")
        await expect(page.locator("#live")).to_have_attribute("data-level", "ok")


async def test_nothing_moves_while_figures_change(
    browser: Browser, observed: RunningGateway, forking: ForkingVllm
) -> None:
    """A poll that brings new divergences, rows and replicas' loads shifts no part of the page."""
    async with visiting(browser, observed) as visit:
        page = await visit.open()
        await expect(page.locator("#runs")).to_be_visible()
        await expect(page.locator("#latest li")).to_have_count(2)
        forking.script.append(words(RIGHT, peak=4))
        forking.script.popleft()
        await ask(observed, "why consensus?")
        await ask(observed, "why consensus?", "seeded")
        await ask(observed, "why consensus?", "seeded")

        await expect(page.locator("#rates tbody tr").filter(has_text="seeded")).to_contain_text("of 1")
        await expect(page.locator("#rates tbody tr").nth(0)).to_contain_text("of 5")
        assert await page.evaluate("window.shifts") == []
        await visit.check()


async def test_a_hidden_page_asks_nothing(browser: Browser, observed: RunningGateway) -> None:
    """A tab in the background costs the gateway nothing, and is up to date as soon as it is seen."""
    async with visiting(browser, observed) as visit:
        await visit.page.clock.install()
        page = await visit.open()
        await expect(page.locator("#latest li")).to_have_count(2)
        await expect(page.locator("#runs")).to_be_visible()
        await page.evaluate("Object.defineProperty(document, 'hidden', { get: () => window.away }); window.away = true")
        await page.clock.run_for(2500)
        asked = len(visit.asked)
        await page.clock.run_for(60_000)
        still = len(visit.asked)
        async with page.expect_request("**/api/state"):
            await page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")

        assert asked == still
