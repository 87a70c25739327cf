"""Runs and comparisons that grow while the page is open."""

import io
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import regard
from regard.config import Config
from regard.serve import catalogue
from regard.serve.settings import Settings
from regard.terminal import Console
from regard.training import train
from tests.page.browser.served.conftest import accessibility_problems, points
from tests.serve.conftest import COMPARISON, serve
from tests.training.conftest import DATA, MODELS, TRAINING


class GatedTraining:
    """A tiny training in a thread, which goes on by one event with each `go`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.error = folder, None
        self.gate, self.logged = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        self.wait()

    def run(self) -> None:
        config = Config.model_validate(
            {
                "data": {"kind": "synthetic", **DATA},
                "model": MODELS["recurrent"],
                "training": TRAINING | {"validate_every": 4},
            }
        )
        console = Console(file=io.StringIO())
        try:
            train(config, self.folder, "cpu", False, console, callbacks=(self.on_event,))
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.logged.release()

    def on_event(self, event: dict[str, Any]) -> None:
        self.logged.release()
        assert self.gate.acquire(timeout=60)

    def wait(self) -> None:
        assert self.logged.acquire(timeout=60)
        assert self.error is None

    def go(self) -> None:
        self.gate.release()
        self.wait()

    def finish(self) -> None:
        self.gate.release(1000)
        self.thread.join()


def test_a_run_that_trains_while_the_page_is_open(open_served, tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "POLL", 0.05)
    training = GatedTraining(tmp_path / "mine")
    try:
        with serve(Settings((tmp_path / "mine",))) as client:
            view = open_served(client.port)
            view.expect("#translate", "No run has weights yet")
            view.page.get_by_role("tab", name="Training").click()
            view.expect(".runState", "In training · no validation yet")
            training.go()
            view.expect(".runState", "step 4, epoch")
            assert points(view) == [1, 1]
            training.go()
            view.expect(".runState", "step 8, epoch")
            assert points(view) == [2, 2]
            rows = view.page.locator(".log tbody tr")
            assert rows.count() == 2
            view.page.locator(".sample-list dd").first.wait_for()
            assert accessibility_problems(view) == []
            training.finish()
            view.expect(".runState", "Training is finished")
            events = regard.runs.RunFolder(training.folder).events
            last = [event for event in events if event["event"] == "validation"][-1]
            view.page.locator(".chart-frame").first.press("End")
            view.expect(".chart .readout", f"Step {last['step']}: ")
            view.expect(".chart .readout", f"validation loss {last['loss']:.3f}")
            view.page.get_by_role("tab", name="Translate").click()
            view.page.locator(".token").first.wait_for()  # it came without a reload
            urls = [url.partition("#")[0] for url in view.requests]
            assert urls.count(view.url) == 1
    finally:
        training.finish()


def test_a_comparison_has_its_table(view):
    view.open(comparison="families").expect(".comparison h2", "families")
    view.expect(".comparison td", "multi30k-transformer")
    table = [row.split("\t") for row in view.page.locator(".comparison tr").all_inner_texts()]
    lines = (COMPARISON / "table.md").read_text("utf-8").splitlines()
    expected = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:5]]
    assert table == [expected[0], *expected[2:]]
    view.expect(".notes code", "nrefs:1")


def test_a_comparison_grows(open_served, tmp_path):
    def log(run: str, steps: range) -> None:
        folder = tmp_path / "sweep" / "runs" / run
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "metrics.jsonl").open("a") as file:
            for step in steps:
                file.write(
                    f'{{"event": "validation", "step": {step}, "loss": {9 - step / 10}, "seconds": 1.5}}\n'
                )

    log("case-rnn-1a2b3c4d/seed-0", range(5, 15, 5))
    with serve(Settings((), (tmp_path / "sweep",))) as client:
        view = open_served(client.port)  # without a run, it opens with the comparison
        view.expect(".comparison .state", "Some runs are not finished yet")
        view.wait_for(".comparison polyline", 1)
        log("case-rnn-1a2b3c4d/seed-0", range(15, 25, 5))
        log("case-gru-99ffee01/seed-0", range(5, 25, 5))
        view.wait_for(".comparison polyline", 2)
        assert points(view) == [4, 4]
        line = view.page.locator("polyline").first.get_attribute("points").split()
        heights = [float(place.split(",")[1]) for place in line]
        assert heights == sorted(heights)  # the loss falls
        strokes = [line.get_attribute("stroke") for line in view.page.locator("polyline").all()]
        assert len(set(strokes)) == 2
        assert not view.page.get_by_role("tab", name="Translate").is_visible()
        with view.page.expect_download() as download:
            view.page.get_by_role("button", name="Save SVG").click()
        saved = Path(download.value.path()).read_text("utf-8")
        assert "case-rnn-1a2b3c4d" in "".join(ElementTree.fromstring(saved).itertext())
        with view.page.expect_download() as download:
            view.page.get_by_role("button", name="Save PNG").click()
        assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
