"""What may be said on a WebSocket: whatever comes, it is understood or refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputError
from penstock.server.websocket.conversation import id_of, read
from penstock.wire import json_protocols

TYPES = [kind.__struct_config__.tag for kind in json_protocols.ClientMessage.__args__]
FIELDS = ["id", "subscription", "queue", "messages", "receipts", "lease_id", "credit", "interval_ms", "group", "batch"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
objects = st.builds(
    lambda type, fields: json.dumps({"type": type, **fields}),
    st.sampled_from(TYPES) | st.text(max_size=5),
    st.dictionaries(st.sampled_from(FIELDS), values, max_size=4),
)


@given(st.text() | objects)
def test_any_text_is_understood_or_refused(text):
    received = text.encode(errors="surrogatepass")
    try:
        said = read(received)
    except InputError:
        return

    assert type(said) in json_protocols.ClientMessage.__args__
    assert id_of(received) == said.id


@pytest.mark.parametrize("received", [None, b"\xff", b"\xed\xa0\x80", b'{"id":[]}', b""])
def test_what_is_no_message_has_no_id_and_is_refused(received):
    assert id_of(received) is None
    with pytest.raises(InputError):
        read(received)
