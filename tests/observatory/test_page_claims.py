"""What the page claims: never more than was measured, and the same whatever page was opened when; in a real browser."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.observatory.visits import visiting
from tests.support.forking import GUARD_KEY, ForkingVllm, address, ask, fill, words
from tests.support.running import RunningGateway, running_gateway
from tests.support.scripted import ScriptedVllm

pytestmark = pytest.mark.anyio


async def test_what_happened_before_the_page_was_opened_is_recent(browser: Browser, observed: RunningGateway) -> None:
    """The gateway remembers, so that a page that is opened, or loaded again, knows what was compared before."""
    async with visiting(browser, observed) as visit:
        page = await visit.open()
        for _ in range(2):
            await expect(page.locator("#facts")).to_contain_text("last 1 min 2 of 8 diverged")
            await expect(page.locator("#rates-window")).to_have_text("Last 1 min")
            await expect(page.locator("#rates tbody tr").nth(0)).to_contain_text("2 of 4")
            await page.reload()
        await visit.check()


@pytest.mark.parametrize(
    ("compared", "bound", "level", "text"),
    [
        (2, 0.7764, "idle", "Deterministic modes: 0 of 2 diverged, below 77.7 % (95 %); too few to claim more."),
        (58, 0.0504, "idle", "Deterministic modes: 0 of 58 diverged, below 5.1 % (95 %); too few to claim more."),
        (59, 0.0495, "ok", "Deterministic modes: 0 of 59 diverged, below 5.0 % (95 %)."),
        (0, 1.0, "idle", "No deterministic mode has been compared yet."),
    ],
)
async def test_the_headline_claims_no_more_than_its_bound(
    compared: int, bound: float, level: str, text: str, browser: Browser, observed: RunningGateway
) -> None:
    """It is good news from a bound of 5 % on; before it is neutral, with the bound in the sentence."""
    sentence = f"0 of {compared}, {text.partition('diverged, ')[2].partition(')')[0]})"
    changes = {"compared": compared, "diverged": 0, "upper_bound": bound, "sentence": sentence}
    async with visiting(browser, observed) as visit:
        page = await visit.open()
        found = await page.evaluate(_HEADLINE, ["all", changes, {}])

    assert (found["level"], found["text"]) == (level, text)


async def test_a_filter_hides_no_alarm(browser: Browser, observed: RunningGateway) -> None:
    """A divergence in a deterministic mode is told whatever is chosen, with its origin left open."""
    alarm = {"origin": "all", "mode": "isolated", "model": "m", "matched": 3, "diverged": 2}
    async with visiting(browser, observed) as visit:
        page = await visit.open()
        found = await page.evaluate(_HEADLINE, ["shadow", {}, {"modes": [alarm]}])

    assert found["level"] == "bad"
    assert found["text"] == "Answers of another origin diverged in a deterministic mode (isolated): 2 of 5."


_HEADLINE = """async ([scope, changes, more]) => {
  const [{ headline }, { Recent }] = await Promise.all(
    ["headline", "recent"].map((name) => import(`/observatory/${name}.js`)),
  );
  const state = { ...(await (await fetch("/observatory/api/state")).json()), ...more };
  Object.assign(state.deterministic[scope], changes);
  return headline(state, scope, new Recent(state.recent));
}"""


async def test_a_margin_that_is_missing_has_its_reason(browser: Browser, forking: ForkingVllm, tmp_path: Path) -> None:
    """Of clients' standard answers it is that no logprobs were asked for; the page says what brings margins."""
    forking.script.extend([words("one sigh"), words("one snow", peak=3)])
    forking.script.popleft()
    async with (
        running_gateway(tmp_path, forking.url, ledger=True, keep_texts=True, guard_key=GUARD_KEY) as gateway,
        visiting(browser, gateway) as visit,
    ):
        for _ in range(2):
            await gateway.post({"model": "m", "messages": [{"role": "user", "content": "tell"}], "temperature": 0})
        page = await visit.open_fork("1 of 1 diverged")

        lead = page.locator(".lead")
        await expect(lead).to_contain_text(
            "without logprobs at the fork, which nobody adds to standard requests of clients"
        )
        await expect(lead).to_contain_text(
            "Canaries bring margins, and so do repeats by the gateway (REPRISE_SHADOW_RATE"
        )
        await expect(page.locator(".text small").nth(0)).to_have_text("5 shared characters, then the characters “igh”")
        await expect(page.locator(".texts .about")).to_contain_text("where tokens begin is not kept")
        await visit.check()


async def test_a_receipt_that_is_gone_is_no_link(browser: Browser, forking: ForkingVllm, tmp_path: Path) -> None:
    """Of one process too only so many are kept, and the page says how many."""
    async with (
        running_gateway(tmp_path, forking.url, ledger=True, guard_key=GUARD_KEY, receipts=3) as gateway,
        visiting(browser, gateway) as visit,
    ):
        await fill(forking, gateway)
        page = await visit.open_fork("1 of 3 diverged")

        receipts = page.locator(".circumstances tr").last
        await expect(receipts).to_contain_text("no receipt: not among the last 3 that this process keeps")
        await expect(receipts.locator("a")).to_have_count(0)
        await visit.check()


async def test_the_canaries_say_where_they_are(browser: Browser, upstream: ScriptedVllm, tmp_path: Path) -> None:
    """How many of the round were sent, how often one is, and when something can be compared."""
    async with (
        running_gateway(tmp_path, upstream.url, ledger=True, canary_interval=900.0) as gateway,
        visiting(browser, gateway) as visit,
    ):
        page = await visit.open()
        state = await (await page.request.get(address(gateway, "/api/state"))).json()

        await expect(page.locator("#canaries")).to_contain_text(
            f"Canaries sent: 0 of {state['canaries']['round']} of the first round, one every 15 min 0 s."
        )
        await expect(page.locator("#canaries")).to_contain_text("comes again, and can be compared, about")
        await page.get_by_label("Clients").check()
        await expect(page.locator("#canaries")).to_have_count(0)
        await visit.check()


async def test_nothing_diverged_in_standard_is_put_in_its_place(
    browser: Browser, forking: ForkingVllm, tmp_path: Path
) -> None:
    """The first answer is what others are compared with: with how many others it ran is said beside the 0."""
    forking.script.extend([words("all the same", peak=5)])
    forking.script.popleft()
    async with (
        running_gateway(tmp_path, forking.url, ledger=True, guard_key=GUARD_KEY) as gateway,
        visiting(browser, gateway) as visit,
    ):
        for prompt in ("a", "a", "b"):
            await ask(gateway, prompt)
        forking.script.extend([words("alone", peak=1)])
        forking.script.popleft()
        await ask(gateway, "a", "isolated")
        page = await visit.open()

        await expect(page.locator("#rates tbody tr").nth(0)).to_contain_text("of 1 *")
        note = page.locator("#even")
        await expect(note).to_contain_text(
            "* standard: the first answer of a cohort is what the others are compared with"
        )
        await expect(note).to_contain_text("Of the 2 cohorts seen last, 2 first answers ran with others, 4 at most.")
        await expect(page.locator("#crossed")).to_have_text(
            "The same request was answered otherwise 1 of 1 in another mode (all origins)."
        )
        colours = "(node) => getComputedStyle(node).color === getComputedStyle(document.body).color"
        assert await page.locator("#crossed").evaluate(colours)
        await page.get_by_role("link", name="Forks", exact=True).click()
        await page.get_by_label("diverged only").uncheck()
        await expect(page.locator("#cohorts li").filter(has_text="isolated")).to_contain_text(
            "1 answer, nothing to compare yet"
        )
        await page.locator("#cohorts a", has_text="0 of 1 diverged").click()
        await expect(page.locator(".lead")).to_contain_text("ran itself with 4 others at most")
        await visit.check()


@pytest.mark.parametrize(("width", "height"), [(1440, 900)])
async def test_the_forks_seen_last_are_seen_first(
    width: int, height: int, browser: Browser, observed: RunningGateway
) -> None:
    """On a common screen the list is there without scrolling."""
    async with visiting(browser, observed, viewport={"width": width, "height": height}) as visit:
        page = await visit.open()
        await expect(page.locator("#latest li")).to_have_count(2)
        box = await page.locator("#latest").bounding_box()
        assert box is not None

    assert box["y"] + box["height"] < height


@pytest.mark.parametrize("width", [800, 1440])
async def test_the_viewer_fits_its_panel(width: int, browser: Browser, observed: RunningGateway) -> None:
    """No table is wider than the panel, and no digest is broken in its middle."""
    async with visiting(browser, observed, viewport={"width": width, "height": 900}) as visit:
        page = await visit.open_fork("1 of 3 diverged")
        detail = page.locator("#detail")
        wide = await detail.evaluate("(node) => node.scrollWidth - node.clientWidth")
        lines = await detail.locator("code, .whole").evaluate_all(
            "(nodes) => nodes.map((node) => node.getClientRects().length)"
        )

    assert wide <= 0
    assert set(lines) == {1}


async def test_a_timeline_has_a_title(browser: Browser, observed: RunningGateway, forking: ForkingVllm) -> None:
    """Its title and its label say of which replica it is, of which time, and what there is to see."""
    name = forking.url.removeprefix("http://")
    async with visiting(browser, observed) as visit:
        page = await visit.open()
        timeline = page.locator("svg.timeline")
        label: Any = await timeline.get_attribute("aria-label")
        assert label == await timeline.locator("title").text_content()
        assert label.startswith(f"Replica {name}, the last 10 min 0 s: ")
        await expect(timeline).to_contain_text("max 1")


async def test_a_run_can_be_read(browser: Browser, observed: RunningGateway) -> None:
    """A label of the overview leads to the run's answers, each with its cohort and its receipt."""
    async with visiting(browser, observed) as visit:
        page = await visit.open()
        await page.get_by_role("link", name="evening").click()
        await expect(page.locator("#run-title")).to_have_text("Run evening")
        rows = page.locator("#answers tbody tr")
        await expect(rows).to_have_count(4)
        await expect(page.locator("#run-about")).to_have_text("4 answers, in the order in which they ended.")
        await expect(page.locator("#more-answers")).to_be_hidden()
        await visit.shoot("run")
        await rows.nth(3).get_by_role("link").first.click()
        await expect(page.locator(".lead")).to_contain_text("B parts from A")
        await page.goto(address(observed, "#/runs/none"))
        await expect(page.locator("#run-about")).to_have_text("No answer of such a run is kept.")
        await visit.check()


async def test_arrows_lead_into_the_list(browser: Browser, observed: RunningGateway) -> None:
    """From the page as it was opened and from the check box; and one cohort alone is a stop of Tab."""
    async with visiting(browser, observed) as visit:
        page = await visit.open("#/forks")
        first, second = (page.locator("#cohorts a").nth(index) for index in (0, 1))
        await expect(page.locator("#cohorts li")).to_have_count(2)
        await page.keyboard.press("ArrowDown")
        await expect(first).to_be_focused()
        await page.keyboard.press("ArrowDown")
        await expect(second).to_be_focused()
        assert await page.locator("#cohorts a[tabindex='0']").count() == 1
        await page.get_by_label("diverged only").press("Space")
        await expect(page.locator("#cohorts li")).to_have_count(3)
        await page.keyboard.press("ArrowDown")
        await expect(page.locator("#cohorts a:focus")).to_have_count(1)
        await page.keyboard.press("Home")
        await expect(first).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#detail h2")).to_be_focused()
        await visit.check()


async def test_a_heading_has_a_ring_for_keys_alone(browser: Browser, observed: RunningGateway) -> None:
    """Who opens a cohort with the mouse, or by its address, sees none; who comes by keys sees where he is."""
    outline = "(node) => getComputedStyle(node).outlineStyle"
    async with visiting(browser, observed) as visit:
        page = await visit.open_fork("1 of 3 diverged")
        title = page.locator("#detail h2")
        by_mouse = await title.evaluate(outline)
        await page.reload()
        await expect(title).to_be_focused()
        by_address = await title.evaluate(outline)
        await page.locator("#cohorts a").first.press("Enter")
        await expect(title).to_be_focused()
        by_keys = await title.evaluate(outline)

    assert (by_mouse, by_address, by_keys) == ("none", "none", "solid")
