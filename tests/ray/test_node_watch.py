"""Which nodes a run uses, and what it says when one of them dies. Without Ray; test_node_loss.py is the real thing."""

from __future__ import annotations

import threading

import pytest
from verl_hyocr import node_watch
from verl_hyocr.node_watch import Loss, Node, UsedNodes

HEAD = Node("a", "hyocr-0", "10.0.0.1", True)
WORKER = Node("b", "hyocr-1", "10.0.0.2", True)
GONE = Node("b", "hyocr-1", "10.0.0.2", False, "health check failed due to missing too many heartbeats\nmore")


def test_a_used_node_that_dies_is_lost():
    used = UsedNodes()
    assert used.update([HEAD, WORKER], [("a", "Runner"), ("b", "Rank"), ("b", "Rank"), ("b", "Server")]) == []
    assert used.update([HEAD, GONE], [("a", "Runner")]) == [Loss(GONE, {"Rank": 2, "Server": 1})]


def test_nodes_without_actors_of_the_run_do_not_matter():
    used = UsedNodes()
    used.update([HEAD, WORKER], [("a", "Runner")])
    assert used.update([HEAD, GONE], [("a", "Runner")]) == []


def test_a_node_whose_actors_have_ended_is_not_used_any_more():
    used = UsedNodes()
    used.update([HEAD, WORKER], [("b", "Rank")])
    used.update([HEAD, WORKER], [])
    assert used.update([HEAD, GONE], []) == []


def test_dead_nodes_of_earlier_days_do_not_matter():
    """A restarted node has a new id; the old row stays in the table."""
    back = Node("c", "hyocr-1", "10.0.0.2", True)
    assert UsedNodes().update([HEAD, GONE, back], [("c", "Rank")]) == []


def test_the_message_names_node_content_cause_and_remedy():
    message = node_watch.describe([Loss(GONE, {"Rank": 2})])
    for words in ("hyocr-1 (10.0.0.2) is dead", "2 Rank", "missing too many heartbeats", "start_ray.sh", "resumes"):
        assert words in message
    assert "more" not in message, "the first line of Ray's reason is enough"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(node_watch, "PERIOD_S", 0.01)
    monkeypatch.setattr(node_watch, "GRACE_S", 0.0)
    monkeypatch.setattr("ray.is_initialized", lambda: True)


def test_the_watch_ends_the_process(quick, capsys):
    looks = iter([([HEAD, WORKER], [("b", "Rank")]), RuntimeError("head busy"), ([HEAD, GONE], [])])
    ended = threading.Event()
    codes, exits = [], []

    def look():
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    def end(code):
        codes.append(code)
        ended.set()

    node_watch.NodeWatch(look, end, at_exit=exits.append).start()
    assert ended.wait(30) and codes == [1]
    assert "node hyocr-1 (10.0.0.2) is dead" in capsys.readouterr().err
    exits[0]()
    assert "node hyocr-1" in capsys.readouterr().err, "the last line of a run that ends by itself"


def test_an_error_that_comes_before_the_next_look_is_explained_too(quick, monkeypatch, capsys):
    monkeypatch.setattr(node_watch, "PERIOD_S", 3600.0)
    looks = [([HEAD, GONE], []), ([HEAD, WORKER], [("b", "Rank")])]
    taken = threading.Event()
    exits = []

    class Used(UsedNodes):
        def update(self, *look):
            try:
                return super().update(*look)
            finally:
                taken.set()

    monkeypatch.setattr(node_watch, "UsedNodes", Used)
    node_watch.NodeWatch(lambda: looks.pop(), end=lambda code: None, at_exit=exits.append).start()
    assert taken.wait(30)
    exits[0]()
    assert "node hyocr-1 (10.0.0.2) is dead" in capsys.readouterr().err


def test_a_run_that_ends_well_says_nothing(quick, capsys):
    exits = []
    watch = node_watch.NodeWatch(lambda: ([HEAD, WORKER], [("b", "Rank")]), at_exit=exits.append)
    watch.start()
    exits[0]()
    assert capsys.readouterr().err == "" and watch.message == ""
