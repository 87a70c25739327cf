"""What the tests of labs share."""

import pytest

from regard.labs import LABS


@pytest.fixture
def lab(request):
    """The lab that a test file is about: tests/labs/test_noisy_keys.py is about noisy-keys."""
    name = request.path.stem.removeprefix("test_").replace("_", "-")
    return LABS[name]


# Beyond the quick form: parameters with which a test can afford a lab that trains models.
SMALL = {
    "bottleneck": {"letters": 4, "max_length": 12, "train_size": 2000},
    "extrapolation": {"positions": "learned, relative-query, rotary"},
}


@pytest.fixture(scope="session")
def small():
    """The parameters of a lab's shortest run that passes."""
    return lambda lab: lab.quick | SMALL.get(lab.name, {})
