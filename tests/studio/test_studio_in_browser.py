"""The studio in a real browser: fifty changes, mistakes, links, copies, several people."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from simulator.api import simulate
from simulator.described.load import load_job
from simulator.errors import InputError
from tests.exporters.chromium import NEEDS_CHROMIUM
from tests.studio.moved_page import Studio
from tests.studio.serving_page import running_studio

pytestmark = NEEDS_CHROMIUM

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_studio() as found:
        yield found


@pytest.fixture
def studio(browser, address) -> Iterator[Studio]:
    opened = Studio(browser, address)
    yield opened
    assert opened.errors == []
    opened.page.close()


def test_after_each_of_fifty_moves_the_page_says_what_simulate_says(studio):
    chance = random.Random(7)
    refused = 0
    for _ in range(50):
        studio.move(chance)
        state = studio.ask("studio.state.values")
        job = {}
        for path, value in state.items():
            block, _, field = path.partition(".")
            job.setdefault(block, {})[field] = value
            job[block] = value if not field else job[block]
        faults = studio.ask("studio.faults.map((fault) => fault.text)")
        refused += bool(faults)
        if faults:
            with pytest.raises(InputError) as error:
                simulate(load_job(job))
            assert faults == [str(fault) for fault in error.value.faults]
        else:
            shown = studio.ask("studio.answer.step_time_s")
            assert shown == simulate(load_job(job)).step_time_s
    assert 0 < refused < 40


def test_a_wrong_value_is_said_beside_its_control_with_the_way_out(studio):
    studio.write("plan.tp", 4)
    studio.write("cluster.gpus", 6)
    beside = studio.page.locator('[data-path="cluster.gpus"] .fault')
    assert "must be a multiple of tp x pp x cp = 4 x 1 x 1 = 4" in beside.inner_text()
    assert "use 4 GPUs" in beside.inner_text()
    number = studio.page.locator("#c-cluster-gpus")
    assert number.get_attribute("aria-describedby") == "c-cluster-gpus-fault"
    studio.page.locator("#faults button").click()
    studio.answered()
    assert studio.ask("document.body.dataset.state") == "ready"
    assert not beside.is_visible()


def test_a_link_holds_the_state_and_the_variants(studio, browser, address):
    studio.page.click("#pin")
    studio.write("plan.tp", 2)
    query = studio.page.url.partition("?")[2]
    again = Studio(browser, address, query)
    assert again.ask("studio.answer.step_time_s") == studio.ask("studio.answer.step_time_s")
    again.until("document.querySelectorAll('#variants thead th').length === 2")
    assert "tp default" in again.page.locator("#variants").inner_text()
    assert again.errors == []
    again.page.close()


def test_make_it_fit_offers_a_change_that_fits_once_applied(studio):
    studio.write("batch.seq_len", 131072)
    studio.page.locator('[data-path="plan.zero"] input').first.check()
    studio.answered()
    assert not studio.ask("studio.answer.fits")
    studio.page.click("#fit")
    studio.until("document.querySelector('.changes button') !== null")
    studio.page.locator(".changes button").first.click()
    studio.answered()
    assert studio.ask("studio.answer.fits")


def test_the_copy_is_the_job_that_is_shown(studio):
    studio.write("plan.tp", 2)
    studio.until("document.getElementById('copied').textContent.includes('tp: 2')")
    text = studio.page.locator("#copied").inner_text()
    assert simulate(load_job(yaml.safe_load(text))).step_time_s == studio.ask(
        "studio.answer.step_time_s"
    )


def test_a_pasted_model_with_a_hostile_name_is_only_a_name(studio):
    config = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
        "_name_or_path": HOSTILE,
    }  # fmt: skip
    studio.page.locator("details.paste summary").click()
    studio.page.locator("textarea").fill(json.dumps(config))
    studio.page.click("#use-config")
    studio.until("studio.answer.title.startsWith('<img')")
    studio.answered()
    assert studio.page.locator("#title").inner_text().startswith(HOSTILE)
    assert studio.page.locator("main img, #panel img").count() == 0


def test_every_control_has_a_name_for_screen_readers(studio):
    nameless = studio.ask(
        "[...document.querySelectorAll('input, select, textarea, button')].filter((each) =>"
        " !each.getAttribute('aria-label') && !each.labels?.length && !each.textContent.trim())"
        ".map((each) => each.outerHTML)"
    )
    assert nameless == []


@pytest.mark.parametrize("width", [320, 390, 768, 1024])
def test_a_narrow_page_needs_no_sideways_scrolling(studio, width):
    studio.page.set_viewport_size({"width": width, "height": 800})
    assert studio.ask("document.documentElement.scrollWidth") <= width


def test_without_the_token_of_its_address_nothing_is_answered(browser):
    with running_studio(token="right") as address:
        page = browser.new_page()
        page.goto(address.replace("right", "wrong"))
        page.locator("#faults li").wait_for()
        assert re.search("token is wrong", page.locator("#faults").inner_text())
        page.close()


CONTROLS = {
    "button", "slider", "spinbutton", "textbox", "combobox", "radio", "link", "DisclosureTriangle",
}  # fmt: skip
"""Roles of what a person works with, as Chromium tells them to a screen reader."""


def accessibility_tree(page: Any) -> list[dict[str, Any]]:
    """What Chromium tells a screen reader: role, name and properties of every node."""
    client = page.context.new_cdp_session(page)
    return [
        {
            "role": node["role"]["value"],
            "name": node.get("name", {}).get("value", ""),
            **{each["name"]: each["value"].get("value") for each in node.get("properties", [])},
        }
        for node in client.send("Accessibility.getFullAXTree")["nodes"]
        if not node.get("ignored") and "role" in node
    ]


def test_a_screen_reader_finds_every_control_by_its_name(studio):
    nodes = accessibility_tree(studio.page)
    controls = [node for node in nodes if node["role"] in CONTROLS]
    assert [node for node in controls if not node["name"].strip()] == []
    assert len(controls) > 40
    reached = [node for node in nodes if node.get("focusable") and node["role"] != "RootWebArea"]
    assert [node for node in reached if not node["name"].strip()] == []
    names = [(node["role"], node["name"]) for node in controls if node["role"] != "radio"]
    assert len(names) == len(set(names))
    assert {"main", "form", "heading", "status", "radiogroup"} <= {node["role"] for node in nodes}


def test_a_change_and_a_mistake_are_announced(studio):
    studio.write("batch.seq_len", 4096)
    said = next(node for node in accessibility_tree(studio.page) if node["role"] == "status")
    assert said["live"] == "polite"
    assert re.match(r"Step .* MFU .* fits", studio.page.locator("#said").text_content())
    studio.write("plan.tp", 3)
    nodes = accessibility_tree(studio.page)
    assert any(node["role"] == "alert" and node["live"] == "assertive" for node in nodes)
    wrong = [node for node in nodes if str(node.get("invalid")) == "true"]
    assert wrong
    described = studio.page.locator("[aria-invalid][aria-describedby]").first
    assert studio.page.locator(f"#{described.get_attribute('aria-describedby')}").is_visible()
