"""The keys of locks are data that older releases share: they never change."""

from __future__ import annotations

import pytest

from cdc.snapshot import reads
from eventstore.postgres import audit, compaction
from projections.alerting import tables
from projections.common import store_lock
from projections.planning import view_schemas
from projections.versions import function_store, registry


@pytest.mark.parametrize(
    ("lock", "key"),
    [
        (reads._LOCK, "18519, %s"),
        (audit._SEALS, "1749238, 2"),
        (compaction._STREAM, "1749232, hashtext(%s || '/' || %s)"),
        (store_lock._LOCK, "hashtext('headwater.store'), hashtext(%s || '/' || %s)"),
        (view_schemas._LOCK, "hashtext('headwater.view_shapes'), hashtext(%s)"),
        (function_store._LOCK, "hashtext('headwater.functions')"),
        (registry._LOCK, "hashtext('headwater.view_versions'), hashtext(%s || '/' || %s)"),
        (tables.EVALUATION_LOCK, "hashtext('headwater.alerts'), hashtext(%s)"),
        (tables.DISPATCH_LOCK, "hashtext('headwater.alert_messages'), hashtext(%s)"),
        (tables._AT_ROWS, "hashtext('headwater.alert_rows'), hashtext(%s)"),
    ],
)
def test_a_lock_has_the_key_that_it_always_had(lock, key):
    assert f"SELECT pg_advisory_xact_lock({key})" == lock.in_transaction
    assert f"SELECT pg_advisory_unlock({key})" == lock.free
