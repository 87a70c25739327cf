"""Requests made from the OpenAPI description, valid or not: none makes the server fail or hang."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.serve.conftest import LIMITS

EXAMPLES = 8  # of each operation
NOTHING_TO_GET_WRONG = [
    *("/api/models", "/api/runs", "/api/comparisons", "/api/comparisons/{name}", "/api/labs"),
    *("/healthz", "/metrics"),
]
PATHS = [
    *("/api/translate", "/api/stream", "/api/score", "/api/explain", "/api/intervene", "/api/page"),
    *(
        "/api/models",
        "/api/runs",
        "/api/runs/{name}",
        "/api/comparisons",
        "/api/comparisons/{name}",
    ),
    *("/api/labs", "/api/labs/{name}", "/healthz", "/metrics"),
]


@pytest.fixture(scope="module")
def description(client):
    return client.get("/api/openapi.json").json


def test_all_paths_are_listed_here(description):
    assert sorted(description["paths"]) == sorted(PATHS)


@pytest.mark.parametrize(
    ("path", "mode"),
    [*((path, GenerationMode.POSITIVE) for path in PATHS)]
    + [(path, GenerationMode.NEGATIVE) for path in PATHS if path not in NOTHING_TO_GET_WRONG],
)
def test_no_request_makes_it_fail(client, description, path, mode):
    [(method, operation)] = description["paths"][path].items()
    operation = schemathesis.openapi.from_dict(description)[path][method.upper()]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case) -> None:
        response = case.call(base_url=f"http://127.0.0.1:{client.port}", timeout=LIMITS.seconds)
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            assert json.loads(response.text).keys() == {"error", "code"}
        documented = description["paths"][path][method]["responses"]
        assert str(response.status_code) in {*documented, "400", "405"}, response.text

    check()
