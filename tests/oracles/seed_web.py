"""What the project's seeds tell of, as tables and views that a deriver keeps of them.

See `test_seed_examples`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from headwater.reading import sql
from projections.definition.registry import load
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.publishing.published_versions import Published
from projections.stores.delta.table_format import FEED

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

VIEWS = '''
from headwater import Calendar, Hopping, Late, Pattern, Session, Sliding, Step, Tumbling
from headwater import source, view

NAMES = ["events", "signals", "orders", "payments", "searches", "clicks", "people", "steps"]
web = source("web", tables=[*NAMES, "charges", "purchases", "posts", "follows"])
(events, signals, orders, payments, searches, clicks, people, steps, charges, purchases) = (
    view.mirror(name, web[f"public.{name}"], keys=["id"], to=["table"])
    for name in [*NAMES, "charges", "purchases"]
)
view.mirror("people_history", web.people, scd=2)
posts = view.mirror("posts", web.posts, keys=["id"], to=["table"])
follows = view.mirror("follows", web.follows, keys=["follower", "followee"], to=["table"])


def counted(name, of, window, by=()):
    view.aggregate(name, of, by=list(by), window=window, count="n", to=["table"])


# 003: windows of 6 minutes
counted("tumbling", events, Tumbling("at", "6 minutes"))
counted("sliding", events, Hopping("at", "6 minutes", "2 minutes"))
counted("hopping", events, Hopping("at", "6 minutes", "10 minutes"))
# 004: four kinds of windows, and the last 8 minutes
counted("tumbling_minute", orders, Tumbling("at", "1 minute"))
counted("hopping_minutes", orders, Hopping("at", "5 minutes", "1 minute"))
counted("sliding_minutes", orders, Sliding("at", "5 minutes"), ["shop"])
counted("sessions", orders, Session("at", "5 minutes"), ["customer"])
counted("last_minutes", orders, Sliding("at", "8 minutes"))
counted("daily", orders, Calendar("at", "day"))

# 001: stragglers, that correct their window, or are counted and kept beside
six = Tumbling("at", "6 minutes")
late = Late("came", after="2 minutes", count="late")
view.aggregate("settled", events, window=six, late=late, count="n", to=["table"])
view.late("stragglers", events, window=six, late=late, to=["table"])
minute = Tumbling("at", "1 minute")
late = Late("came", after="1 minute", count="late")
view.aggregate("signals_per_minute", signals, window=minute, late=late, count="n", to=["table"])
careful = Late("came", after="1 minute", count="late", ahead="1 day")
view.aggregate("sound_per_minute", signals, window=minute, late=careful, count="n", to=["table"])

# 004: searches and clicks of one session within an hour, and those without a click
view.sql(
    "found",
    """
    SELECT s.id, s.term, min(c.at) AS clicked_at, count(c.id) AS clicks
      FROM searches s
      LEFT JOIN clicks c ON c.session = s.session AND c.at BETWEEN s.at AND s.at + INTERVAL 1 HOUR
     GROUP BY s.id, s.term
    """,
    keys=["id"],
    to=["table"],
)
view.sql(
    "click_through",
    """
    SELECT term, count(*) AS searches, count(clicked_at) / count(*) AS rate FROM found GROUP BY term
    """,
    keys=["term"],
    to=["table"],
)
# 004: who clicked, by their name now, and by the one that they had
view.sql(
    "named_now",
    "SELECT c.id, p.name FROM clicks c LEFT JOIN people p ON p.id = c.person",
    keys=["id"],
    to=["table"],
)
view.sql(
    "named_then",
    """
    SELECT c.id, p.name
      FROM clicks c
      LEFT JOIN people_history p
        ON p.id = c.person AND c.at >= p.valid_from AND (p.valid_to IS NULL OR c.at < p.valid_to)
    """,
    keys=["id"],
    to=["table"],
)
# 003: orders and payments, by order and within half an hour
view.sql(
    "paid",
    """
    SELECT o.id, p.id AS payment, p.amount
      FROM orders o
      LEFT JOIN payments p
        ON p.order_id = o.id AND p.at BETWEEN o.at AND o.at + INTERVAL 30 MINUTES
    """,
    keys=["id", "payment"],
    to=["table"],
)
view.sql(
    "paid_for_nothing",
    """
    SELECT p.id
      FROM payments p
     WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.id = p.order_id
                          AND p.at BETWEEN o.at AND o.at + INTERVAL 30 MINUTES)
    """,
    keys=["id"],
    to=["table"],
)
# 000: "payment successful" and "ship item", that the broker gives in the other order
view.pattern(
    "shipped_after_payment",
    steps,
    by=["order_id"],
    time="at",
    pattern=Pattern(
        [Step("paid", "kind = 'paid'"), Step("shipped", "kind = 'shipped'")], within="1 day"
    ),
    keep=["id"],
    to=["table"],
)
view.sql(
    "shipped_unpaid",
    """
    SELECT s.id
      FROM steps s
     WHERE s.kind = 'shipped'
       AND NOT EXISTS (SELECT 1 FROM steps p
                        WHERE p.order_id = s.order_id AND p.kind = 'paid' AND p.at <= s.at)
    """,
    keys=["id"],
    to=["table"],
)
# the issue: an order without a payment in half an hour, and declined payments before a large order;
# each is of two tables, and a pattern reads one view
of_orders = view.sql(
    "of_orders",
    """
    SELECT 'order' AS kind, id, id AS order_id, at FROM orders
    UNION ALL
    SELECT 'payment' AS kind, id, order_id, at FROM payments
    """,
    keys=["kind", "id"],
    to=["table"],
)
view.pattern(
    "unpaid",
    of_orders,
    by=["order_id"],
    time="at",
    pattern=Pattern(
        [Step("placed", "kind = 'order'"), Step("paid", "kind = 'payment'", absent=True)],
        within="30 minutes",
    ),
    to=["table"],
)
of_customers = view.sql(
    "of_customers",
    """
    SELECT 'charge' AS kind, id, customer, status, NULL AS amount, at FROM charges
    UNION ALL
    SELECT 'purchase' AS kind, id, customer, NULL AS status, amount, at FROM purchases
    """,
    keys=["kind", "id"],
    to=["table"],
)
view.pattern(
    "suspects",
    of_customers,
    by=["customer"],
    time="at",
    pattern=Pattern(
        [
            Step("declined", "kind = 'charge' AND status = 'declined'", times=2),
            Step("large", "kind = 'purchase' AND amount > 500"),
        ],
        within="1 hour",
        skip="to next row",
    ),
    keep=["kind", "id"],
    to=["table"],
)
# the issue: a timeline, kept under changes of both sides
view.sql(
    "timeline",
    """
    SELECT f.follower, p.id AS post, p.author, p.text
      FROM follows f JOIN posts p ON p.author = f.followee
    """,
    keys=["follower", "post"],
    to=["table"],
)
timed = view.sql(
    "timed",
    """
    SELECT f.follower, p.id AS post, p.at FROM follows f JOIN posts p ON p.author = f.followee
    """,
    keys=["follower", "post"],
    to=["table"],
)
newest = view.Top("at", rows=2, columns=("post",))
view.aggregate("timelines", timed, by=["follower"], top={"newest": newest}, to=["table"])
'''

NUMBER, TEXT, MOMENT = pa.int64(), pa.string(), pa.timestamp("us", "UTC")
AT = {"id": NUMBER, "at": MOMENT}
TABLES: dict[str, tuple[tuple[str, ...], dict[str, pa.DataType]]] = {
    "events": (("id",), {**AT, "came": MOMENT}),
    "signals": (("id",), {**AT, "device": TEXT, "came": MOMENT}),
    "orders": (("id",), {**AT, "shop": TEXT, "customer": NUMBER}),
    "payments": (("id",), {**AT, "order_id": NUMBER, "amount": NUMBER}),
    "searches": (("id",), {**AT, "session": TEXT, "term": TEXT}),
    "clicks": (("id",), {**AT, "session": TEXT, "person": NUMBER}),
    "people": (("id",), {"id": NUMBER, "name": TEXT}),
    "people_history": (
        ("id", "valid_from"),
        {"id": NUMBER, "name": TEXT, "valid_from": MOMENT, "valid_to": MOMENT},
    ),
    "steps": (("id",), {**AT, "order_id": NUMBER, "kind": TEXT}),
    "charges": (("id",), {**AT, "customer": NUMBER, "status": TEXT}),
    "purchases": (("id",), {**AT, "customer": NUMBER, "amount": NUMBER}),
    "posts": (("id",), {**AT, "author": TEXT, "text": TEXT}),
    "follows": (("follower", "followee"), {"follower": TEXT, "followee": TEXT}),
}
NINE = datetime(2026, 3, 1, 9, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)

Row = dict[str, Any]


def at(text: str, day: int = 1) -> datetime:
    """A time of that day."""
    return datetime.fromisoformat(f"2026-03-{day:02} {text}").replace(tzinfo=UTC)


class Stage(NamedTuple):
    """What the tables and the views had at one boundary."""

    tables: dict[str, list[Row]]
    views: dict[str, list[Row]]


class Web:
    """Tables, and the views of `VIEWS` that a deriver keeps of them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        from projections.job.spark.session import session_of_batches
        from projections.job.tasks.derived_tables import DerivedTablesTask

        (folder / "views.py").write_text(VIEWS)
        spec = JobSpec(JobConfig.of_tables("web", folder, ()))
        spec = replace(spec, derived=tuple(load(folder / "views.py").derived.values()))
        self.deriver = DerivedTablesTask(spark, session_of_batches(spark), spec)
        self.rows: dict[str, dict[Any, Row]] = {name: {} for name in TABLES}
        self._written: dict[str, dict[Any, Row]] = {name: {} for name in TABLES}
        self._tables, self._published = (
            spec.config.addresses.tables,
            Published(spec.config.addresses.tables, "web"),
        )
        self._lsn = 100
        for name, (_, columns) in TABLES.items():
            schema = pa.schema({**columns, "_version": NUMBER})
            DeltaTable.create(str(self._tables / name), schema, configuration=dict(FEED))

    def put(self, table: str, *rows: Row) -> None:
        for row in rows:
            assert row.keys() == TABLES[table][1].keys()
            self.rows[table][tuple(row[key] for key in TABLES[table][0])] = row

    def drop(self, table: str, *key: Any) -> None:
        self.rows[table].pop(key, None)

    def publish(self) -> Stage:
        """Writes what has changed, and has the views follow to the next boundary."""
        self._lsn += 10
        for name in TABLES:
            self._write(name)
        versions = {name: DeltaTable(str(self._tables / name)).version() for name in TABLES}
        version = self._published.publish(1, self._lsn, versions, complete=False)
        assert version is not None
        self._published.complete(version, self.deriver.derived(version))
        assert {} == self.deriver.faults
        names = [maintainer.view.name for maintainer in self.deriver.maintainers]
        views = {name: self._read(name) for name in names}
        return Stage({name: list(rows.values()) for name, rows in self.rows.items()}, views)

    def _write(self, name: str) -> None:
        keys, columns = TABLES[name]
        now, before = self.rows[name], self._written[name]
        put = [row | {"_version": self._lsn} for key, row in now.items() if before.get(key) != row]
        gone = [row | {"_version": None} for key, row in before.items() if key not in now]
        self._written[name] = dict(now)
        if not put and not gone:
            return
        on = " AND ".join(f"t.{key} = s.{key}" for key in keys)
        given = pa.Table.from_pylist(gone + put, pa.schema({**columns, "_version": NUMBER}))
        table = DeltaTable(str(self._tables / name))
        merge = table.merge(given, on, source_alias="s", target_alias="t", streamed_exec=False)
        merge.when_matched_delete("s._version IS NULL").when_matched_update_all(
            "s._version IS NOT NULL"
        ).when_not_matched_insert_all().execute()

    def _read(self, view: str) -> list[Row]:
        rows = sql.run(f"SELECT * FROM {view}", self._tables).to_pylist()  # noqa: S608
        return [{name: v for name, v in row.items() if name != "_version"} for row in rows]
