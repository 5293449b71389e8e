"""The server keeps to its own OpenAPI document, whatever schemathesis thinks of."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serving import toy_server

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def test_answers_are_as_documented() -> None:
    with toy_server(max_num_seqs=16, num_blocks=256) as server:
        document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        operations: list[Any] = [found.ok() for found in list[Any](document.get_all_operations())]
        assert len(operations) == 9
        for operation in operations:

            @settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy())
            def check(case: Any) -> None:
                case.call_and_validate(checks=CHECKS)

            check()
        server.wait_until_idle()
        assert server.complete("a", max_tokens=1).status_code == 200
