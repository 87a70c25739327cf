"""Fixtures shared by the lab tests."""

import pytest

from regard.labs import LABS


@pytest.fixture
def lab(request):
    """The lab of a test file: noisy-keys in tests/labs/test_noisy_keys.py."""
    name = request.path.stem.removeprefix("test_").replace("_", "-")
    return LABS[name]


# In addition to the lab's `quick` parameters: small enough to train models in a test.
SMALL = {
    "bottleneck": {"letters": 3, "max_length": 12, "train_size": 2400},
    "extrapolation": {"positions": "learned, relative-query, rotary"},
}


# In addition to both: the effect is absent however precisely it is measured.
ABSENT = {"scaling": {"lengths": 4, "repeats": 1}}


@pytest.fixture(scope="session")
def small():
    """Parameters for the shortest run of a lab that passes."""
    return lambda lab: lab.quick | SMALL.get(lab.name, {})


@pytest.fixture(scope="session")
def absent(small):
    """Parameters for a short run of a lab whose law holds without the effect."""
    return lambda lab: small(lab) | ABSENT.get(lab.name, {}) | lab.absent
