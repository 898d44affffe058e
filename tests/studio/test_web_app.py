"""Only the page of the studio may ask it."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from tests.studio.serving_page import running_studio


@pytest.fixture(scope="module")
def address():
    with running_studio() as its_address:
        yield urlsplit(its_address)


def ask(address, **headers: str) -> tuple[int, str]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(HTTPConnection(address.hostname, address.port, timeout=600)) as connection:
        connection.request("POST", "/ask/step", json.dumps({"state": {}}), given)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_a_question_of_the_page_is_answered(address):
    status, said = ask(address, content_type="application/json")
    assert status == 200
    assert "model: is missing" in said


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
def test_what_another_site_can_send_without_asking_is_refused(address, kind):
    status, said = ask(address, content_type=kind)
    assert status == 403
    assert "application/json" in said


def test_another_name_of_this_machine_is_refused(address):
    status, _ = ask(address, content_type="application/json", host="studio.example")
    assert status == 400
