"""Files of a repository on the Hugging Face hub, over HTTP: pinned to a commit, verified, kept in the cache.

    hf:user/name            the branch main
    hf:user/name@revision   a branch, a tag or a commit

Nothing else is ever downloaded: naming a repository is the request. HF_ENDPOINT replaces the hub's address.
Without a network, the files of the last download are used.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from regard import documents, schemas, shipped
from regard.errors import UserError
from regard.text.datasets import cache_dir
from regard.text.download import DownloadError, fetch

PREFIX = "hf:"
ENDPOINT = "https://huggingface.co"
NAME = re.compile(r"hf:(?P<name>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>\w[\w./-]*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
LISTING_BYTES = 64 << 20
# A run folder without what only a resumed training needs.
RUN_FILES = ("config.toml", "tokenizer.json", "model.safetensors", "architecture.json", "card.json")

Report = Callable[[str, int, int | None], object]


@dataclass(frozen=True)
class Repository:
    """A model or a dataset on the hub."""

    kind: Literal["models", "datasets"]
    name: str
    revision: str = "main"

    @classmethod
    def parse(cls, text: str, kind: Literal["models", "datasets"] = "models") -> "Repository":
        """The repository that `hf:user/name` or `hf:user/name@revision` names."""
        match = NAME.fullmatch(text)
        if match is None or ".." in text:
            raise UserError(
                f'"{text}" is not a repository on the Hugging Face hub: write hf:user/name or '
                "hf:user/name@revision"
            )
        return cls(kind, match["name"], match["revision"] or "main")

    def __str__(self) -> str:
        return f"{PREFIX}{self.name}" + ("" if self.revision == "main" else f"@{self.revision}")

    @property
    def folder(self) -> Path:
        return cache_dir() / "hub" / f"{self.kind}--{self.name.replace('/', '--')}"

    def listing(self) -> "Listing":
        """The files at this revision. The hub is asked each time, unless the revision is a commit."""
        path = self.folder / "revisions" / f"{quote(self.revision, safe='')}.json"
        if not (COMMIT.fullmatch(self.revision) and path.is_file()):
            revision = quote(self.revision, safe="")
            url = f"{endpoint()}/api/{self.kind}/{self.name}/revision/{revision}?blobs=true"
            try:
                fetch(url, path, check=partial(self.parse_listing, url), max_bytes=LISTING_BYTES)
            except DownloadError as error:
                # The hub answers 401 for a name that does not exist, as it may be a private one.
                if error.status in (401, 403, 404):
                    raise UserError(self.explain_missing(error.reason)) from None
                if not path.is_file():
                    raise UserError(self.explain_unreachable(error.reason)) from None
        return self.parse_listing(str(path), path)

    @staticmethod
    def parse_listing(origin: str, path: Path) -> "Listing":
        try:
            record = documents.read(path, schemas.RepositoryListing)
        except UserError:
            raise UserError(
                f"{origin} is not a list of a repository's files, as the Hugging Face hub gives it: "
                "check HF_ENDPOINT"
            ) from None
        blobs = {entry["rfilename"]: Blob.parse(entry) for entry in record["siblings"]}
        return Listing(record["sha"], blobs)

    def fetch(
        self, listing: "Listing", wanted: Iterable[str], report: Report | None = None
    ) -> Path:
        """Download those of the wanted files that are listed; return the folder of the commit.

        `report(file, done, total or None)` is called with the progress.
        """
        folder = self.folder / listing.commit
        for file in wanted:
            blob, path = listing.blobs.get(file), folder / file
            if blob is None or path.is_file():
                continue
            place = self.name if self.kind == "models" else f"datasets/{self.name}"
            url = f"{endpoint()}/{place}/resolve/{listing.commit}/{quote(file)}"
            progress = None if report is None else partial(report, file)
            fetch(url, path, sha256=blob.sha256, check=partial(blob.check, url), report=progress)
        return folder

    def explain_missing(self, reason: str) -> str:
        noun = self.kind.removesuffix("s")
        return (
            f'{endpoint()} has no public {noun} "{self.name}" with the revision "{self.revision}" '
            f"({reason}): check the spelling"
        )

    def explain_unreachable(self, reason: str) -> str:
        return (
            f"{self} has not been downloaded yet, and {endpoint()} cannot be reached ({reason}): check the "
            "network, or HF_ENDPOINT if you set it"
        )


@dataclass(frozen=True)
class Listing:
    """The files of a commit, by path."""

    commit: str
    blobs: dict[str, "Blob"]


@dataclass(frozen=True)
class Blob:
    """A file's checksum: of a large file its sha256, of a small one git's SHA-1 of header and content."""

    sha256: str | None
    git_sha1: str

    @classmethod
    def parse(cls, entry: dict[str, Any]) -> "Blob":
        return cls((entry.get("lfs") or {}).get("sha256"), entry["blobId"])

    def check(self, url: str, path: Path) -> None:
        """Raise an error unless the file is the one listed; `fetch` has checked its sha256, if it has one."""
        if self.sha256 is not None:
            return
        content = path.read_bytes()
        actual = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        if actual != self.git_sha1:
            raise UserError(
                f"{url} is not the expected file: its git checksum is {actual}, not {self.git_sha1}. It "
                "was deleted; try again"
            )


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")


def is_hub_name(run: str | Path) -> bool:
    return str(run).startswith(PREFIX)


def find_run(run: str | Path, report: Report | None = None) -> Path:
    """The folder of a run or of a shipped model. A run on the hub, hf:user/name, is downloaded once."""
    if not is_hub_name(run):
        return shipped.find_run(run)
    shipped.check_single(run)
    repository = Repository.parse(str(run))
    listing = repository.listing()
    if "config.toml" not in listing.blobs:
        raise UserError(
            f"{run} is not a model of regard: it has no config.toml. A Hugging Face checkpoint can be "
            f'fine-tuned: model = {{kind = "pretrained", name = "{repository.name}"}}'
        )
    return repository.fetch(listing, RUN_FILES, report)
