"""The examples in docstrings print what they say."""

import doctest
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

import pytest

import regard

# What one uses alone, in a model of one's own: each must have an example.
WITH_EXAMPLES = {
    "regard.attention.attend",
    "regard.attention.heads",
    "regard.attention.positions",
    "regard.search.beam",
}


def find_modules(*packages: str) -> list[ModuleType]:
    folders = [import_module(package).__path__[0] for package in packages]
    names = [
        found.name
        for package, folder in zip(packages, folders, strict=True)
        for found in walk_packages([folder], f"{package}.")
    ]
    return [import_module(name) for name in names]


MODULES = find_modules("regard.attention", "regard.search")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples(module):
    result = doctest.testmod(module, extraglobs={"regard": regard})
    assert result.failed == 0
    assert (result.attempted > 0) >= (module.__name__ in WITH_EXAMPLES)
