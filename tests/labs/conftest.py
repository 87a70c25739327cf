"""What the tests of labs share."""

import pytest

from regard.labs import LABS


@pytest.fixture
def lab(request):
    """The lab that a test file is about: tests/labs/test_noisy_keys.py is about noisy-keys."""
    name = request.path.stem.removeprefix("test_").replace("_", "-")
    return LABS[name]
