"""Repositories of the Hugging Face hub, from a server on this machine that answers as the hub does."""

import pytest

from regard.errors import UserError
from regard.text.hub import RUN_FILES, Repository, find_run
from tests.hub_server import COMMIT, serve

FILES = {"config.toml": b"a = 1\n", "model.safetensors": b"weights" * 999, "README.md": b"read me"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    with serve() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url + "/")
        hub.files = {"models/me/de-en": dict(FILES)}
        hub.large = {"model.safetensors"}
        yield hub


@pytest.mark.parametrize("revision", ["", "@main", "@v1", f"@{COMMIT}"])
def test_downloads_only_the_files_of_a_run(revision, hub):
    folder = find_run(f"hf:me/de-en{revision}")
    assert folder.name == COMMIT
    names = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert names == {name: FILES[name] for name in RUN_FILES if name in FILES}
    assert hub.requests == [
        f"api/models/me/de-en/revision/{revision[1:] or 'main'}",
        f"me/de-en/resolve/{COMMIT}/config.toml",
        f"me/de-en/resolve/{COMMIT}/model.safetensors",
    ]


def test_a_file_is_downloaded_once_and_a_commit_listed_once(hub):
    find_run("hf:me/de-en")
    count = len(hub.requests)
    find_run("hf:me/de-en")
    assert hub.requests[count:] == ["api/models/me/de-en/revision/main"]
    find_run(f"hf:me/de-en@{COMMIT}")
    count = len(hub.requests)
    find_run(f"hf:me/de-en@{COMMIT}")
    assert hub.requests[count:] == []


def test_without_a_network_the_last_download_is_used(hub, monkeypatch):
    folder = find_run("hf:me/de-en")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert find_run("hf:me/de-en") == folder
    with pytest.raises(
        UserError,
        match=r"hf:me/other has not been downloaded yet, and http://127.0.0.1:9 cannot be reached",
    ):
        find_run("hf:me/other")


def test_a_new_commit_is_a_new_folder(hub):
    old = find_run("hf:me/de-en")
    hub.commits["main"] = "f" * 40
    with pytest.raises(UserError, match=r"could not be downloaded"):  # the server has no such files
        find_run("hf:me/de-en")
    assert (old / "config.toml").is_file()


@pytest.mark.parametrize(
    ("file", "message"),
    [("model.safetensors", "expected sha256"), ("config.toml", "its git checksum is")],
)
def test_a_file_with_another_checksum_is_refused(file, message, hub):
    hub.corrupt = {file}
    with pytest.raises(UserError, match=message):
        find_run("hf:me/de-en")
    assert not list(Repository.parse("hf:me/de-en").folder.rglob(file))
    hub.corrupt = set()
    assert (find_run("hf:me/de-en") / file).read_bytes() == FILES[file]


def test_a_missing_repository_is_a_user_error(hub):
    with pytest.raises(
        UserError, match=r'has no public model "me/de-eng" with the revision "main"'
    ):
        find_run("hf:me/de-eng")
    with pytest.raises(UserError, match=r'revision "v9"'):
        find_run("hf:me/de-en@v9")


def test_a_repository_of_something_else_is_not_downloaded(hub):
    hub.files = {"models/me/bert": {"model.safetensors": b"large"}}
    with pytest.raises(UserError, match=r'hf:me/bert is not a model of regard.*name = "me/bert"'):
        find_run("hf:me/bert")
    assert hub.requests == ["api/models/me/bert/revision/main"]


def test_an_endpoint_that_is_not_a_hub_is_a_user_error(hub, monkeypatch):
    monkeypatch.setattr("tests.hub_server.describe", lambda *_: {"hello": 1})
    with pytest.raises(UserError, match=r"is not a list of a repository's files.*HF_ENDPOINT"):
        find_run("hf:me/de-en")


@pytest.mark.parametrize(
    "name", ["hf:", "hf:me", "hf:me/a/b", "hf:../a", "hf:me/..", "hf:a/b@../c"]
)
def test_a_name_that_is_none_is_a_user_error(name):
    with pytest.raises(UserError, match=r"write hf:user/name or hf:user/name@revision"):
        find_run(name)


def test_a_folder_is_left_alone(tmp_path):
    assert find_run(tmp_path) == tmp_path
