"""Labs on the command line: list, run, set parameters, plot, write a worksheet, check an answer."""

import json
import re
from html import escape
from typing import Literal

import pytest
from pydantic import Field

from regard.attention import SCORES
from regard.labs import LABS, Parameters


@pytest.fixture
def two_labs(monkeypatch):
    """The registry reduced to the first two labs that train nothing."""
    labs = [lab for lab in LABS.values() if not lab.quick][:2]
    monkeypatch.setattr("regard.labs.LABS", {lab.name: lab for lab in labs})
    return [lab.name for lab in labs]


def test_list_of_labs(regard):
    result = regard("lab")
    assert result.code == 0
    flat = " ".join(result.out.split())
    for lab in LABS.values():
        assert lab.name in flat
    listed = json.loads(regard("lab", "--json").out)["labs"]
    assert [(lab["name"], lab["claim"]) for lab in listed] == [
        (lab.name, lab.claim) for lab in LABS.values()
    ]


def test_one_lab_prints_claim_derivation_and_checks(regard):
    result = regard("lab", "copying", "--set", "beta=8", "--set", "keys=7", "--seed", 3)
    lab = LABS["copying"]
    assert result.code == 0
    assert result.out.startswith(f"copying: {lab.claim}\n\n{lab.derivation.strip()}\n")
    assert "beta = 8.0, keys = 7, width = 64, seed = 3" in result.out
    assert "closed form" in result.out
    assert result.out.count("pass  ") == 2
    assert result.out.count("present  ") == 2
    assert "copying: the law holds, the effect is present (" in result.out


def test_law_without_its_effect_does_not_pass(regard):
    result = regard("lab", "copying", "--set", "beta=0")
    assert result.code == 1
    assert "ABSENT  " in result.out
    assert "The output is no copy: v_j has only 10% of the weight." in result.out
    assert "copying: the law holds, the effect is ABSENT (" in result.out
    document = json.loads(regard("lab", "copying", "--set", "beta=0", "--json").out)
    assert document["passed"] is False
    assert document["law"]["passed"] is True
    assert document["effect"]["passed"] is False
    assert [check["passed"] for check in document["effect"]["checks"]] == [False] * 2


def test_notes_are_printed_and_in_the_report(regard, tmp_path):
    result = regard("lab", "causality", "--set", "length=2", "--plots", tmp_path)
    assert result.code == 0
    note = "skipped: 8 of kind pretrained: its name has no default, so no model can be built\n"
    assert note in result.out
    assert f"\n- {note}\n" in (tmp_path / "labs.md").read_text("utf-8")


def test_failing_claim(regard, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    result = regard("lab", "copying")
    assert result.code == 1
    assert "FAIL  largest difference of alpha_j" in result.out
    assert "copying: THE LAW FAILS, the effect is ABSENT" in result.out
    result = regard("lab", "copying", "--json")
    assert result.code == 1
    assert json.loads(result.out)["passed"] is False


def test_json_is_one_document(regard, tmp_path):
    result = regard("lab", "copying", "--set", "beta=6", "--plots", tmp_path, "--json")
    document = json.loads(result.out)
    assert result.code == 0
    assert result.err == ""
    assert document["name"] == "copying"
    assert document["claim"] == LABS["copying"].claim
    assert document["passed"] is True
    assert document["parameters"]["beta"] == 6
    assert document["figures"]["alpha"] == pytest.approx(0.9781781)
    assert document["plots"] == [str(tmp_path / "copying.png"), str(tmp_path / "copying-dark.png")]


def test_plots_in_light_and_dark(regard, tmp_path):
    result = regard("lab", "copying", "--plots", tmp_path / "new")
    light, dark = tmp_path / "new" / "copying.png", tmp_path / "new" / "copying-dark.png"
    assert result.code == 0
    assert f"written: {light}\nwritten: {dark}\n" in result.out
    assert light.read_bytes().startswith(b"\x89PNG")
    assert light.read_bytes() != dark.read_bytes()


def test_report_lists_the_labs_with_their_plots(regard, tmp_path):
    result = regard("lab", "copying", "qkv", "--set", "copying.beta=6.5", "--plots", tmp_path)
    assert result.code == 0
    report = (tmp_path / "labs.md").read_text("utf-8")
    for name in ("copying", "qkv"):
        assert f"## {name}: {LABS[name].claim}\n" in report
        assert LABS[name].derivation.strip() in report
        for picture in (f"{name}.png", f"{name}-dark.png"):
            assert f'"{picture}"' in report
            assert (tmp_path / picture).is_file()
    assert "`regard lab copying --seed 0 --set beta=6.5`" in report
    assert "`regard lab qkv --seed 0`" in report
    assert r"| closed form | \|a - v_j\| |" in report  # an unescaped bar would end the cell
    assert "failed" not in report


def test_report_is_a_page_too(regard, tmp_path):
    regard("lab", "copying", "--set", "beta=0", "--plots", tmp_path)
    page = (tmp_path / "labs.html").read_text("utf-8")
    assert escape(LABS["copying"].derivation.strip()) in page
    assert "the law holds, the effect is ABSENT" in page
    assert page.count("<li class=fail>") == 2
    assert "v_j has only 10% of the weight" in page
    pictures = re.findall(r'(?:src|srcset)="([^"]*)"', page)
    assert sorted(pictures) == ["copying-dark.png", "copying.png"]
    assert all((tmp_path / picture).is_file() for picture in pictures)
    assert "http" not in page.replace("http-equiv", "")  # nothing is loaded from elsewhere
    assert "{{" not in page


def test_all_prints_a_summary(regard, two_labs):
    result = regard("lab", "--all", "--quick")
    assert result.code == 0
    assert "2 of 2 labs pass" in result.out
    labs = json.loads(regard("lab", "--all", "--json").out)["labs"]
    assert [lab["name"] for lab in labs] == two_labs


def test_all_fails_if_one_lab_fails(regard, monkeypatch):
    other = type("Other", (type(LABS["copying"]),), {"name": "other", "claim": "Another claim"})()
    passing = other.run()
    monkeypatch.setattr("regard.labs.LABS", {"copying": LABS["copying"], "other": other})
    monkeypatch.setattr(other, "run", lambda seed, **parameters: passing, raising=False)
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    result = regard("lab", "--all")
    assert result.code == 1
    rows = [line.split()[:2] for line in result.out.splitlines()[-3:-1]]
    assert rows == [["copying", "FAIL"], ["other", "pass"]]
    assert "1 of 2 labs pass" in result.out
    # One line per lab without a terminal.
    assert result.err.splitlines() == ["[1/2] copying", "[2/2] other"]
    result = regard("lab", "--all", "--json")
    assert result.code == 1
    document = json.loads(result.out)
    assert document["passed"] is False
    assert [lab["passed"] for lab in document["labs"]] == [False, True]


def test_quick_and_parameters_of_one_lab(regard, monkeypatch):
    class Long(type(LABS["copying"])):
        name = "long"
        quick = {"keys": 3, "beta": 5.0}  # noqa: RUF012

    monkeypatch.setattr("regard.labs.LABS", {"copying": LABS["copying"], "long": Long()})
    args = ["lab", "--all", "--quick", "--set", "width=31", "--set", "long.beta=6", "--json"]
    first, second = json.loads(regard(*args).out)["labs"]
    assert first["parameters"] == {"beta": 12, "keys": 10, "width": 31, "scaled": False}
    assert second["parameters"] == {"beta": 6, "keys": 3, "width": 31, "scaled": False}


@pytest.mark.parametrize("name", LABS)
def test_list_of_parameters(regard, name):
    result = regard("lab", name, "--parameters")
    assert result.code == 0
    for parameter in LABS[name].parameters.model_fields:
        assert f"\n{parameter} " in result.out
    (listed,) = json.loads(regard("lab", name, "--parameters", "--json").out)["labs"]
    names = [parameter["name"] for parameter in listed["parameters"]]
    assert names == list(LABS[name].parameters.model_fields)


def test_parameter_ranges_in_words(regard, monkeypatch):
    class OtherParameters(Parameters):
        scale: float = Field(2.0, gt=1, le=1e6)
        """A scale."""
        mode: Literal["fast", "slow"] = "slow"
        """A mode."""

    other = type(
        "Other", (type(LABS["copying"]),), {"name": "other", "parameters": OtherParameters}
    )()
    monkeypatch.setattr("regard.labs.LABS", {"copying": LABS["copying"], "other": other})
    text = " ".join(regard("lab", "--parameters").out.split())
    assert "beta 12 from 0 to 400 Scale of the query" in text
    assert "scale 2 above 1 to 1000000 A scale. mode slow fast, slow A mode." in text


MISTAKES = {
    "unknown lab": (["copyng"], 'there is no lab "copyng". Did you mean "copying"? Labs: copying'),
    "unknown parameter": (["copying", "--set", "bta=1"], 'bta: unknown key. Did you mean "beta"?'),
    "out of range": (
        ["copying", "--set", "beta=999"],
        "beta: got 999; it should be less than or equal to 400",
    ),
    "no value": (["copying", "--set", "beta"], '"beta" is not a setting: write key=value'),
    "parameter of another lab": (
        ["copying", "--set", "rotary.x=1"],
        "--set rotary.x: this lab is not selected",
    ),
    "all and one": (["copying", "--all"], "name labs or give --all, not both"),
    "two modes": (["copying", "--parameters", "--check", "a.py"], "exclude each other"),
    "check without a lab": (["--check", "a.py"], "--check grades the answer to one lab"),
    "worksheet without a lab": (["--worksheet", "a"], "--worksheet needs a lab"),
    "set without a lab": (
        ["--set", "beta=8"],
        "--set needs a lab to run: name one or give",
    ),
    "quick without a lab": (["--quick"], "--quick needs a lab to run"),
    "plots of parameters": (
        ["copying", "--parameters", "--plots", "a"],
        "--plots needs a lab to run",
    ),
    "no file": (["copying", "--check", "nosuch.py"], "there is no file nosuch.py"),
    "no time limit": (
        ["copying", "--check", "a.py", "--limit", "0"],
        "--limit must be a positive number of seconds",
    ),
}


@pytest.mark.parametrize(("args", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_user_errors(regard, args, message):
    result = regard("lab", *args)
    assert result.code == 2
    assert result.out == ""
    assert message in result.err
    assert "Traceback" not in result.err


def test_parameters_are_validated_before_any_lab_runs(regard, monkeypatch):
    other = type("Other", (type(LABS["copying"]),), {"name": "other"})()
    monkeypatch.setattr("regard.labs.LABS", {"copying": LABS["copying"], "other": other})
    result = regard("lab", "copying", "other", "--set", "other.nosuch=3")
    assert result.code == 2
    assert result.out == ""
    assert "lab other: nosuch: unknown key" in result.err
    assert "To set it for one lab, write other.parameter=value" in result.err


def test_worksheet_from_starter_to_pass(regard, tmp_path):
    result = regard("lab", "copying", "--worksheet", tmp_path)
    sheet = tmp_path / "copying.py"
    assert result.code == 0
    assert f"regard lab copying --check {sheet}" in result.out

    result = regard("lab", "copying", "--check", sheet)
    assert result.code == 1
    assert "FAIL  not implemented yet: fill in query in line" in result.out

    starter = sheet.read_text("utf-8")
    sheet.write_text(starter.replace("raise NotImplementedError", "return keys[j]"), "utf-8")
    result = regard("lab", "copying", "--check", sheet)
    assert result.code == 1
    assert "got 0.40461; expected 0.931738 (within 1e-06)" in result.out
    assert result.out.count("q . k_j must be beta") == 1  # each hint is printed once
    assert "query is not correct yet: 4 of 6 checks pass" in result.out

    sheet.write_text(starter.replace("raise NotImplementedError", "return beta * keys[j]"), "utf-8")
    result = regard("lab", "copying", "--check", sheet, "--json")
    assert result.code == 0
    document = json.loads(result.out)
    assert document["passed"] is True
    assert (document["name"], document["function"], document["file"]) == (
        "copying",
        "query",
        str(sheet),
    )
    assert len(document["checks"]) == 6

    result = regard("lab", "copying", "--worksheet", tmp_path)
    assert result.code == 2
    assert "already exists and may contain your work" in result.err
    assert "return beta * keys[j]" in sheet.read_text("utf-8")


def test_worksheets_are_written_for_all_labs_or_none(regard, tmp_path):
    last = list(LABS)[-1]
    (tmp_path / f"{last}.py").touch()
    assert regard("lab", "--all", "--worksheet", tmp_path).code == 2
    assert len(list(tmp_path.iterdir())) == 1
    result = regard("lab", "--all", "--worksheet", tmp_path / "new", "--json")
    written = json.loads(result.out)["worksheets"]
    assert list(written) == list(LABS)
    assert {path.stem for path in (tmp_path / "new").iterdir()} == set(LABS)


def test_syntax_error_is_reported_with_its_line(regard, tmp_path):
    (tmp_path / "a.py").write_text("import math\n\ndef query(keys, j, beta:\n    return keys\n")
    result = regard("lab", "copying", "--check", tmp_path / "a.py")
    assert result.code == 2
    assert result.out == ""
    assert "a.py, line 3: SyntaxError: '(' was never closed" in result.err
