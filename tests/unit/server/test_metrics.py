"""Metrics: counted once each, under the names that dashboards ask for."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from outrider.engine.async_engine import EngineLoad
from outrider.server.metrics import Metrics
from outrider.server.serving import Serving
from outrider.server.settings import ServerSettings
from tests.serving import LETTERS, TOY_CONFIG, TOY_DISTRIBUTION
from tests.unit.engine.helpers import GREEDY, oracle, toy_engine

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "outrider.json"

Samples = dict[tuple[str, str], float]


def samples(metrics: Metrics) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "model_name"}
            assert sample.labels["model_name"] == "toy"
            found[sample.name, ",".join(labels.values())] = sample.value
    return found


def after_one_request() -> Samples:
    """One greedy request of 24 tokens; in each step all but the last of 4 drafts are right."""
    metrics = Metrics("toy", lambda: EngineLoad(2, 3, 0.5), lambda: 360)
    engine = toy_engine(
        TOY_DISTRIBUTION, oracle(TOY_DISTRIBUTION, right=lambda _: 3, vocab_size=LETTERS), vocab_size=LETTERS
    )
    request = engine.add_request("r", [1, 2, 3], GREEDY)
    metrics.started(request, 0.25)
    while engine.has_requests:
        for gained, piece in engine.step():
            metrics.gained(gained, piece)
    metrics.ended(request)
    return samples(metrics)


def test_each_figure_is_counted_once() -> None:
    found = after_one_request()
    # The first token comes alone, then five steps of 3 accepted and 1 recovered, and a shorter one at the end.
    drafts, drafted, accepted = 6, 22, 17
    assert found["outrider:prompt_tokens_total", ""] == 3
    assert found["outrider:prefix_cache_queries_total", ""] == 3
    assert found["outrider:prefix_cache_hits_total", ""] == 0
    assert found["outrider:generation_tokens_total", ""] == 24
    assert found["outrider:request_success_total", "length"] == 1
    for prefix in ("outrider", "vllm"):
        assert found[f"{prefix}:spec_decode_num_drafts_total", ""] == drafts
        assert found[f"{prefix}:spec_decode_num_draft_tokens_total", ""] == drafted
        assert found[f"{prefix}:spec_decode_num_accepted_tokens_total", ""] == accepted
        per_position = [
            found.get((f"{prefix}:spec_decode_num_accepted_tokens_per_pos_total", str(i)), 0) for i in range(4)
        ]
        assert per_position == [6, 6, 5, 0]
    assert found["outrider:time_to_first_token_seconds_count", ""] == 1
    assert found["outrider:inter_token_latency_seconds_count", ""] == 23
    assert found["outrider:request_time_per_output_token_seconds_count", ""] == 1
    assert found["outrider:e2e_request_latency_seconds_count", ""] == 1
    assert found["outrider:request_queue_time_seconds_sum", ""] == 0.25
    assert found["outrider:num_requests_running", ""] == 2
    assert found["outrider:num_requests_waiting", ""] == 3
    assert found["outrider:kv_cache_usage_perc", ""] == 0.5
    assert found["outrider:drafter_index_bytes", ""] == 360


def test_servers_in_one_process_count_for_themselves() -> None:
    first, second = (Metrics("toy", lambda: EngineLoad(0, 0, 0.0)) for _ in range(2))
    engine = toy_engine(TOY_DISTRIBUTION, None, vocab_size=LETTERS)
    first.started(engine.add_request("r", [1], GREEDY), 0.0)
    assert samples(first)["outrider:prompt_tokens_total", ""] == 1
    assert samples(second)["outrider:prompt_tokens_total", ""] == 0
    assert Serving(TOY_CONFIG, ServerSettings()).metrics() == b""


def test_the_dashboard_asks_only_for_metrics_that_exist() -> None:
    existing = {name for name, _ in after_one_request()}
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    asked = {name for expression in expressions for name in re.findall(r"(?:outrider|vllm):\w+", expression)}
    assert len(asked) > 12
    assert asked <= existing
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
