"""Answer files that attack the checker: each is stopped, and does harm where its protection is missing."""

import re
import sys

import pytest

from regard.labs.grading.worker.confine import PROTECTIONS
from tests.labs.attacks import ATTACKS, HARMS, available_protections, run_attack
from tests.labs.attacks.__main__ import main

linux = pytest.mark.skipif(sys.platform != "linux", reason="the protections are those of Linux")


def every(attacks):
    return pytest.mark.parametrize("attack", attacks, ids=[attack.name for attack in attacks])


@every(ATTACKS)
def test_attack_has_all_fields(attack):
    assert attack.title.endswith(".")
    assert attack.once
    assert attack.harm in HARMS
    design = attack.stopped_by == "design"
    assert design + attack.unstoppable + bool(attack.stoppers) == 1, attack.stopped_by


@linux
@every(ATTACKS)
def test_attack_is_stopped(attack, tmp_path):
    outcome = run_attack(attack, tmp_path / "answer")
    missing = attack.works_alone and not attack.stoppers & available_protections().keys()
    assert outcome.harms == ({attack.harm} if attack.unstoppable or missing else set()), outcome


@linux
@every([attack for attack in ATTACKS if attack.works_alone])
def test_attack_does_harm_without_the_protections_against_it(attack, tmp_path):
    others = set(PROTECTIONS) - attack.stoppers - {"audit"}
    outcome = run_attack(attack, tmp_path / "answer", others)
    assert attack.harm in outcome.harms, outcome


@linux
@pytest.mark.parametrize("stopper", ["landlock", "seccomp"])
@every([attack for attack in ATTACKS if {"landlock", "seccomp"} <= attack.stoppers])
def test_each_of_two_protections_suffices(attack, stopper, tmp_path):
    version = available_protections().get(stopper, "")
    if not version or (attack.harm == "killed" and re.fullmatch(r"ABI [1-5]", version)):
        pytest.skip("this system lacks it, or has a Landlock without signals")
    others = set(PROTECTIONS) - attack.stoppers - {"audit"}
    outcome = run_attack(attack, tmp_path / "answer", others | {stopper})
    assert not outcome.harms, outcome


@linux
def test_table_of_attacks(capsys):
    assert main(["read_file", "exit_early", "file_exists"]) == 0
    printed = capsys.readouterr().out
    assert "3 attacks, 2 stopped" in printed
    assert re.search(r"read_file +Read a file of the user. +stopped by landlock", printed)
    assert "file_exists: Ask whether a file exists, and for its size and time. (neither" in printed
