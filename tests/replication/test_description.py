"""Tests of the description of a node, which is part of its claims to own the replicated log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.description import NodeDescription

NAMES = st.text(max_size=20)
PORTS = st.dictionaries(NAMES, st.integers(1, 65_535), max_size=5)


@given(st.builds(NodeDescription, NAMES, NAMES, PORTS, NAMES, NAMES))
def test_description_is_decoded_as_it_was_encoded(description: NodeDescription) -> None:
    assert NodeDescription.decode(description.encode()) == description


@given(
    st.text()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
    ).map(json.dumps)
    | st.fixed_dictionaries({"node": st.none() | st.text(), "ports": st.integers() | PORTS}).map(
        json.dumps
    )
)
def test_description_of_a_newer_version_is_read_as_far_as_it_is_known(text: str) -> None:
    description = NodeDescription.decode(text)
    assert isinstance(description.node, str)
    assert all(isinstance(port, int) for port in description.ports.values())


@pytest.mark.parametrize(
    ("host", "server"),
    [("broker-1", "broker-1:5672"), ("10.0.0.1", "10.0.0.1:5672"), ("::1", "[::1]:5672")],
)
def test_server_of_a_listener(host: str, server: str) -> None:
    description = NodeDescription("one", host, {"amqp": 5672})
    assert description.server("amqp") == server
    assert description.server("mqtt") == ""
