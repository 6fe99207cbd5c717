"""The routes file: forms of an entry, errors that name the place, and reloading during a run."""

from __future__ import annotations

import json
import logging
import os

import pytest

from reward.utils.judge_config import DEFAULT_ROUTES_FILE, JudgeConfigError
from reward.utils.routes import RoutesFile, api_key_variables, parse_server, read_routes, usable_routes


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    "entry, name, url",
    [
        ("10.0.0.1:8000", "10.0.0.1:8000", "http://10.0.0.1:8000/v1"),
        ("node-3:8000/", "node-3:8000", "http://node-3:8000/v1"),
        ("[::1]:8000", "[::1]:8000", "http://[::1]:8000/v1"),
        ("http://h:1/v1/", "h:1", "http://h:1/v1"),
        ("https://judge.example.com", "judge.example.com:443", "https://judge.example.com:443/v1"),
        ("https://h/openai/v1", "h:443/openai/v1", "https://h:443/openai/v1"),
        ({"url": "h:1"}, "h:1", "http://h:1/v1"),
    ],
)
def test_forms_of_an_entry(entry, name, url):
    spec = parse_server(entry, "here")
    assert (spec.name, spec.base_url) == (name, url)


def test_options_of_an_entry():
    spec = parse_server({"url": "h:1", "api_key_env": "K", "model": "m", "concurrency": 3}, "here")
    assert (spec.api_key_env, spec.model, spec.concurrency) == ("K", "m", 3)


@pytest.mark.parametrize(
    "entry, complaint",
    [
        ("host", 'write "host:8000"'),
        ("", "no server"),
        (None, "no server"),
        (8000, "no server"),
        ("host:port", "no address"),
        ("host:99999", "no address"),
        ("host:1/v1", "full URL"),
        ("ftp://h:1", "http:// or https://"),
        ("https://key@h/v1", "api_key_env"),
        ("http://h:1/v1?key=x", "query"),
        ("ho st:1", "no host"),
        ({"url": "h:1", "key": "x"}, "unknown key 'key'"),
        ({"model": "x"}, "no server"),
        ({"url": "h:1", "concurrency": 0}, "at least 1"),
        ({"url": "h:1", "concurrency": True}, "at least 1"),
        ({"url": "h:1", "api_key_env": 3}, "must be text"),
    ],
)
def test_bad_entry_names_its_place(entry, complaint):
    with pytest.raises(JudgeConfigError, match=complaint) as error:
        parse_server(entry, "routes.json: 'm'[2]")
    assert str(error.value).startswith("routes.json: 'm'[2]: ")


@pytest.mark.parametrize(
    "text, complaint",
    [
        ('{"m": ["h:1"]\n "n": []}', r"routes\.json:2:2: no valid JSON"),
        ("", r"routes\.json:1:1: no valid JSON"),
        ('["h:1"]', "must be an object"),
        ('{"m": "h:1"}', "must be a list"),
        ('{"m": ["h:1"], "m": ["h:2"]}', "stands there twice"),
        ('{"m": ["h"]}', r"'m'\[0\]"),
        ("[" * 100_000, "routes.json"),
    ],
)
def test_bad_file_names_the_place(tmp_path, text, complaint):
    path = tmp_path / "routes.json"
    path.write_text(text)
    with pytest.raises(JudgeConfigError, match=complaint):
        read_routes(path)


def test_missing_file(tmp_path):
    with pytest.raises(JudgeConfigError, match="cannot be read"):
        read_routes(tmp_path / "none.json")


def test_server_listed_twice_counts_once(tmp_path, caplog):
    path = tmp_path / "routes.json"
    path.write_text('{"m": ["h:1", "http://h:1/v1", "h:2"]}')
    assert [spec.name for spec in read_routes(path)["m"]] == ["h:1", "h:2"]
    assert "twice" in caplog.text


def test_file_of_the_kit_has_an_entry_without_servers():
    assert list(read_routes(DEFAULT_ROUTES_FILE).values()) == [[]]
    with pytest.raises(JudgeConfigError, match="lists no server") as error:
        usable_routes()
    assert "RM_SYSTEM_JUDGE_MODEL_NAME" in str(error.value) and DEFAULT_ROUTES_FILE in str(error.value)


def test_usable_routes(tmp_path, monkeypatch):
    path = tmp_path / "routes.json"
    path.write_text(json.dumps({"m": ["h:1", {"url": "https://k/v1", "api_key_env": "SOME_JUDGE_KEY"}]}))
    monkeypatch.setenv("JUDGE_ROUTES_FILE", str(path))
    monkeypatch.setenv("RM_SYSTEM_JUDGE_MODEL_NAME", "m")
    monkeypatch.delenv("SOME_JUDGE_KEY", raising=False)
    assert api_key_variables() == ["SOME_JUDGE_KEY"]
    with pytest.raises(JudgeConfigError, match="SOME_JUDGE_KEY, which is not set"):
        usable_routes()
    monkeypatch.setenv("SOME_JUDGE_KEY", "x")
    assert usable_routes() == usable_routes("m", path) == ["http://h:1/v1", "https://k:443/v1"]
    with pytest.raises(JudgeConfigError, match="no entry for the judge model 'other'"):
        usable_routes("other")


def names(routes: RoutesFile) -> list[str]:
    return [spec.name for spec in routes.servers()]


def test_change_is_seen_within_a_second(tmp_path):
    path, clock = tmp_path / "routes.json", Clock()
    path.write_text('{"m": ["h:1"]}')
    routes = RoutesFile(path, "m", clock=clock)
    path.write_text('{"m": ["h:1", "h:2"]}')
    clock.now += 0.5
    assert names(routes) == ["h:1"]
    clock.now += 0.5
    assert names(routes) == ["h:1", "h:2"]


def test_replaced_file_of_equal_size_and_time_is_seen(tmp_path):
    path, clock = tmp_path / "routes.json", Clock()
    path.write_text('{"m": ["h:1"]}')
    routes = RoutesFile(path, "m", clock=clock)
    stat = path.stat()
    new = tmp_path / "new.json"
    new.write_text('{"m": ["h:2"]}')
    os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    new.replace(path)
    clock.now += 1
    assert names(routes) == ["h:2"]


@pytest.mark.parametrize("text", ['{"m": ["h:1', '{"m": []}', '{"n": ["h:2"]}', '{"m": ["nonsense"]}', None])
def test_unusable_version_is_logged_and_not_taken(tmp_path, caplog, text):
    path, clock = tmp_path / "routes.json", Clock()
    path.write_text('{"m": ["h:1"]}')
    routes = RoutesFile(path, "m", clock=clock)
    path.unlink() if text is None else path.write_text(text)
    for _ in range(3):
        clock.now += 1
        assert names(routes) == ["h:1"]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1 and "last good version" in errors[0].getMessage()
    path.write_text('{"m": ["h:3"]}')
    clock.now += 1
    assert names(routes) == ["h:3"]
