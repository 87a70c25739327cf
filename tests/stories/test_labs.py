"""Labs as a user meets them: list, run, turn, draw, write an answer, have it checked."""

import json
from typing import Literal

import pytest
from pydantic import Field

from regard.attention import SCORES
from regard.labs import LABS, Parameters


@pytest.fixture
def two(monkeypatch):
    """The first two labs that train nothing, as if there were no others."""
    quick = [lab for lab in LABS.values() if not lab.quick][:2]
    monkeypatch.setattr("regard.labs.LABS", {lab.name: lab for lab in quick})
    return [lab.name for lab in quick]


def test_the_list(regard):
    said = regard("lab")
    assert said.code == 0
    flat = " ".join(said.out.split())
    for lab in LABS.values():
        assert lab.name in flat
    found = json.loads(regard("lab", "--json").out)["labs"]
    assert [(one["name"], one["claim"]) for one in found] == [
        (lab.name, lab.claim) for lab in LABS.values()
    ]


def test_one_lab_tells_what_and_why(regard):
    said = regard("lab", "copying", "--set", "beta=8", "--set", "keys=7", "--seed", 3)
    lab = LABS["copying"]
    assert said.code == 0
    assert said.out.startswith(f"copying: {lab.claim}\n\n{lab.derivation.strip()}\n")
    assert "beta = 8.0, keys = 7, width = 64, seed = 3" in said.out
    assert "closed form" in said.out
    assert said.out.count("pass  ") == 2
    assert "copying: the claim holds (" in said.out


def test_what_was_left_out_is_said_on_screen_and_on_paper(regard, tmp_path):
    said = regard("lab", "causality", "--set", "length=2", "--plots", tmp_path)
    assert said.code == 0
    told = "skipped: 3 of kind pretrained: its name has no default, so no model can be built\n"
    assert told in said.out
    assert f"\n- {told}\n" in (tmp_path / "labs.md").read_text("utf-8")


def test_a_claim_that_does_not_hold(regard, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    said = regard("lab", "copying")
    assert said.code == 1
    assert "FAIL  largest difference of alpha_j" in said.out
    assert "THE CLAIM DOES NOT HOLD" in said.out
    said = regard("lab", "copying", "--json")
    assert said.code == 1
    assert json.loads(said.out)["passed"] is False


def test_json_is_one_document(regard, tmp_path):
    said = regard("lab", "copying", "--set", "beta=2", "--plots", tmp_path, "--json")
    found = json.loads(said.out)
    assert said.code == 0
    assert said.err == ""
    assert found["name"] == "copying"
    assert found["claim"] == LABS["copying"].claim
    assert found["passed"] is True
    assert found["parameters"]["beta"] == 2
    assert found["figures"]["alpha"] == pytest.approx(0.4508531)
    assert found["plots"] == [str(tmp_path / "copying.png"), str(tmp_path / "copying-dark.png")]


def test_plots_are_light_and_dark(regard, tmp_path):
    said = regard("lab", "copying", "--plots", tmp_path / "new")
    light, dark = tmp_path / "new" / "copying.png", tmp_path / "new" / "copying-dark.png"
    assert said.code == 0
    assert f"written: {light}\nwritten: {dark}\n" in said.out
    assert light.read_bytes().startswith(b"\x89PNG")
    assert light.read_bytes() != dark.read_bytes()


def test_a_page_tells_of_the_labs_whose_pictures_are_beside_it(regard, tmp_path):
    from regard.labs import LABS

    said = regard("lab", "copying", "qkv", "--set", "copying.beta=2.5", "--plots", tmp_path)
    assert said.code == 0
    page = (tmp_path / "labs.md").read_text("utf-8")
    for name in ("copying", "qkv"):
        assert f"## {name}: {LABS[name].claim}\n" in page
        assert LABS[name].derivation.strip() in page
        for picture in (f"{name}.png", f"{name}-dark.png"):
            assert f'"{picture}"' in page
            assert (tmp_path / picture).is_file()
    assert "`regard lab copying --seed 0 --set beta=2.5`" in page
    assert "`regard lab qkv --seed 0`" in page
    assert r"| closed form | \|a - v_j\| |" in page  # a bar in a cell would end it
    assert "failed" not in page


def test_all_with_a_summary(regard, two):
    said = regard("lab", "--all", "--quick")
    assert said.code == 0
    assert f"{len(two)} of {len(two)} claims hold" in said.out or len(two) == 1
    found = json.loads(regard("lab", "--all", "--json").out)
    found = found["labs"] if len(two) > 1 else [found]
    assert [one["name"] for one in found] == two


def test_all_fails_if_one_does(regard, monkeypatch):
    other = type("Other", (type(LABS["copying"]),), {"name": "other", "claim": "It is so"})()
    right = other.run()
    monkeypatch.setattr("regard.labs.LABS", {"copying": LABS["copying"], "other": other})
    monkeypatch.setattr(other, "run", lambda seed, **parameters: right, raising=False)
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    said = regard("lab", "--all")
    assert said.code == 1
    rows = [line.split()[:2] for line in said.out.splitlines()[-3:-1]]
    assert rows == [["copying", "FAIL"], ["other", "pass"]]
    assert "1 of 2 claims hold" in said.out
    assert said.err.splitlines() == ["[1/2] copying", "[2/2] other"]  # a line a lab, no terminal
    said = regard("lab", "--all", "--json")
    assert said.code == 1
    found = json.loads(said.out)
    assert found["passed"] is False
    assert [one["passed"] for one in found["labs"]] == [False, True]


def test_the_short_form_and_knobs_of_one_lab(regard, monkeypatch):
    class Long(type(LABS["copying"])):
        name = "long"
        quick = {"keys": 3, "beta": 5.0}  # noqa: RUF012

    monkeypatch.setattr("regard.labs.LABS", {"copying": LABS["copying"], "long": Long()})
    words = ["lab", "--all", "--quick", "--set", "width=31", "--set", "long.beta=6", "--json"]
    one, other = json.loads(regard(*words).out)["labs"]
    assert one["parameters"] == {"beta": 12, "keys": 10, "width": 31}
    assert other["parameters"] == {"beta": 6, "keys": 3, "width": 31}


@pytest.mark.parametrize("name", LABS)
def test_knobs_are_listed(regard, name):
    said = regard("lab", name, "--parameters")
    assert said.code == 0
    for parameter in LABS[name].parameters.model_fields:
        assert f"\n{parameter} " in said.out
    (found,) = json.loads(regard("lab", name, "--parameters", "--json").out)["labs"]
    assert [parameter["name"] for parameter in found["parameters"]] == list(
        LABS[name].parameters.model_fields
    )


def test_ranges_in_words(regard, monkeypatch):
    class Turned(Parameters):
        much: float = Field(2.0, gt=1, le=1e6)
        """How much."""
        which: Literal["this", "that"] = "that"
        """Which one."""

    other = type("Other", (type(LABS["copying"]),), {"name": "other", "parameters": Turned})()
    monkeypatch.setattr("regard.labs.LABS", {"copying": LABS["copying"], "other": other})
    said = " ".join(regard("lab", "--parameters").out.split())
    assert "beta 12 from 0 to 50 How strongly the query points" in said
    assert "much 2 above 1 to 1000000 How much. which that this, that Which one." in said


MISTAKES = {
    "a name": (["copyng"], 'there is no lab "copyng". Did you mean "copying"? Labs: copying'),
    "a parameter": (["copying", "--set", "bta=1"], 'bta: unknown key. Did you mean "beta"?'),
    "a range": (
        ["copying", "--set", "beta=99"],
        "beta: got 99; it should be less than or equal to 50",
    ),
    "no value": (["copying", "--set", "beta"], '"beta" sets nothing: write key=value'),
    "a parameter's lab": (["copying", "--set", "rotary.x=1"], "--set rotary.x: no such lab is run"),
    "all and one": (["copying", "--all"], "name labs, or give --all: not both"),
    "two wishes": (["copying", "--parameters", "--check", "a.py"], "each ask for something else"),
    "a check of nothing": (["--check", "a.py"], "--check grades the answer to one lab"),
    "a worksheet of nothing": (["--worksheet", "a"], "--worksheet needs a lab"),
    "a parameter of nothing": (
        ["--set", "beta=8"],
        "--set is for a lab that is run: name one or give",
    ),
    "a short form of nothing": (["--quick"], "--quick is for a lab that is run"),
    "a picture of parameters": (
        ["copying", "--parameters", "--plots", "a"],
        "--plots is for a lab that is run",
    ),
    "no file": (["copying", "--check", "nosuch.py"], "there is no file nosuch.py"),
    "no time": (["copying", "--check", "a.py", "--limit", "0"], "--limit is a number of seconds"),
}


@pytest.mark.parametrize(("words", "told"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_get_a_sentence(regard, words, told):
    said = regard("lab", *words)
    assert said.code == 2
    assert said.out == ""
    assert told in said.err
    assert "Traceback" not in said.err


def test_a_knob_is_refused_before_anything_runs(regard, monkeypatch):
    other = type("Other", (type(LABS["copying"]),), {"name": "other"})()
    monkeypatch.setattr("regard.labs.LABS", {"copying": LABS["copying"], "other": other})
    said = regard("lab", "copying", "other", "--set", "other.nosuch=3")
    assert said.code == 2
    assert said.out == ""
    assert "lab other: nosuch: unknown key" in said.err
    assert "For one of several labs write other.parameter=value" in said.err


def test_a_worksheet_from_start_to_pass(regard, tmp_path):
    said = regard("lab", "copying", "--worksheet", tmp_path)
    sheet = tmp_path / "copying.py"
    assert said.code == 0
    assert f"regard lab copying --check {sheet}" in said.out

    said = regard("lab", "copying", "--check", sheet)
    assert said.code == 1
    assert "FAIL  nothing written yet: fill in query in line" in said.out

    starter = sheet.read_text("utf-8")
    sheet.write_text(starter.replace("raise NotImplementedError", "return keys[j]"), "utf-8")
    said = regard("lab", "copying", "--check", sheet)
    assert said.code == 1
    assert "came out: 0.40461; the law says: 0.931738 (within 1e-06)" in said.out
    assert said.out.count("q . k_j must be beta") == 1  # a lesson is taught once
    assert "query is not there yet: 4 of 6 checks pass" in said.out

    sheet.write_text(starter.replace("raise NotImplementedError", "return beta * keys[j]"), "utf-8")
    said = regard("lab", "copying", "--check", sheet, "--json")
    assert said.code == 0
    found = json.loads(said.out)
    assert found["passed"] is True
    assert (found["name"], found["function"], found["file"]) == ("copying", "query", str(sheet))
    assert len(found["checks"]) == 6

    said = regard("lab", "copying", "--worksheet", tmp_path)
    assert said.code == 2
    assert "is there already, perhaps with your work in it" in said.err
    assert "return beta * keys[j]" in sheet.read_text("utf-8")


def test_a_worksheet_of_each_or_of_none(regard, tmp_path):
    last = list(LABS)[-1]
    (tmp_path / f"{last}.py").touch()
    assert regard("lab", "--all", "--worksheet", tmp_path).code == 2
    assert len(list(tmp_path.iterdir())) == 1
    said = regard("lab", "--all", "--worksheet", tmp_path / "new", "--json")
    found = json.loads(said.out)["worksheets"]
    assert list(found) == list(LABS)
    assert {path.stem for path in (tmp_path / "new").iterdir()} == set(LABS)


def test_a_syntax_error_is_told_with_its_line(regard, tmp_path):
    (tmp_path / "a.py").write_text("import math\n\ndef query(keys, j, beta:\n    return keys\n")
    said = regard("lab", "copying", "--check", tmp_path / "a.py")
    assert said.code == 2
    assert said.out == ""
    assert "a.py, line 3: SyntaxError: '(' was never closed" in said.err
