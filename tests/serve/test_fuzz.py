"""No request of a seeded generator gets a 500; the larger run is ``python -m tests.serve.fuzz``."""

from __future__ import annotations

import pytest

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
