"""No request of a seeded generator gets a 500; the larger run is ``python -m tests.serve.fuzz``."""

from __future__ import annotations

import pytest

from laplace_metric.cli.serve._guard import RequestRefused
from laplace_metric.cli.serve._query import Question
from tests.serve.fuzz import fuzz
from tests.serve.server import require_extra

require_extra()


@pytest.mark.parametrize("kind", ["vectors", "shop"])
def test_every_request_gets_an_answer_or_a_refusal(kind, request, start, query_files, caplog):
    service = start(request.getfixturevalue(kind))
    service.reload = lambda: 1  # it has tests of its own, and takes long
    found = fuzz(service, query_files[0].read_bytes(), seed=1, count=400)
    assert {status for _, status in found} >= {200, 400, 403, 404, 405, 413, 415}
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("name", ["vector", "text", "k", "alpha"])
def test_half_a_surrogate_pair_is_refused(name):
    with pytest.raises(RequestRefused, match=f"{name}="):
        Question.of({"text": "a", name: "\ud800"})
