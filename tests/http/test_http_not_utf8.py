"""Bodies that are not UTF-8 in some place: refused with where, by every route that takes one."""

from __future__ import annotations

import json

import pytest

from penstock.server.http.openapi import PARAMETERS
from penstock.server.http.routes import ROUTES, Route
from tests.support.http import HttpThread

TAKING = [route for route in ROUTES if route.body is not None]


@pytest.mark.parametrize("route", TAKING, ids=lambda route: route.name)
def test_a_body_that_is_not_utf_8_is_refused_wherever_that_is(server: HttpThread, route: Route):
    sound = json.dumps(route.example).encode()
    path = route.path.format(**{name: example for name, (_, _, example) in PARAMETERS.items()})
    for at in [1, *(at + 1 for at, letter in enumerate(sound) if letter == ord('"'))]:
        answer = server.http.request(route.method, path, content=sound[:at] + b"\xfb" + sound[at:])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request"), at
