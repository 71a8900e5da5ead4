"""Random derived views over three small tables, and random changes of those."""

# ruff: noqa: S608 - queries are what this makes

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

COLUMNS = {"id": "int", "x": "int", "y": "int", "s": "string", "at": "timestamp"}
DDL = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
TABLES = ("a", "b", "c")
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Query:
    """A view.

    Attributes:
        shape: Which rule of the grammar made it.
        sql: Its text.
        keys: Columns that identify a row.
        plain: Whether it has nothing but joins by equality and a GROUP BY: then it must be keyed.
    """

    shape: str
    sql: str
    keys: tuple[str, ...]
    plain: bool = False


@dataclass
class World:
    """Three tables that change.

    Attributes:
        random: Where chance comes from.
        tables: Rows by their id, by table.
    """

    random: Random
    tables: dict[str, dict[int, Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table in TABLES:
            ids = self.random.sample(range(1, 9), self.random.randint(0, 6))
            self.tables[table] = {number: self.row(number) for number in ids}

    def row(self, number: int) -> Row:
        pick = self.random.choice
        day = pick([None, "2026-01-01 10:00:00", "2026-01-01 23:00:00", "2026-01-02 01:00:00"])
        x, y = pick([None, 0, 1, 2, 3]), pick([None, 0, 1, 2])
        return (number, x, y, pick([None, "p", "q"]), day)

    def change(self) -> dict[str, list[Row]]:
        """Changes some tables at once; returns rows before and after, by table."""
        changed: dict[str, list[Row]] = {}
        for table in self.random.sample(TABLES, self.random.choice([1, 1, 2, 3])):
            before = dict(self.tables[table])
            rows = self.tables[table]
            for _ in range(self.random.randint(1, 3)):
                number = self.random.randint(1, 8)
                what = self.random.choice(["put", "put", "delete", "rename"])
                if what == "delete":
                    rows.pop(number, None)
                elif what == "rename" and number in rows:
                    target = self.random.randint(1, 8)
                    rows[target] = (target, *rows.pop(number)[1:])
                else:
                    rows[number] = self.row(number)
            moved = [old for key, old in before.items() if rows.get(key) != old]
            moved += [new for key, new in rows.items() if before.get(key) != new]
            if moved:
                changed[table] = moved
        return changed

    def rows(self) -> dict[str, list[Row]]:
        return {table: list(rows.values()) for table, rows in self.tables.items()}


class SpreadWorld(World):
    """Three tables of more rows, whose times lie in twenty days, most in the order of their ids."""

    IDS = 24

    def __post_init__(self) -> None:
        for table in TABLES:
            ids = self.random.sample(range(1, self.IDS), self.random.randint(12, 20))
            self.tables[table] = {number: self.row(number) for number in ids}

    def row(self, number: int) -> Row:
        number_of, pick = self.random.randint, self.random.choice
        day = pick([number, number, number, number_of(1, 20)]) % 20 + 1
        at = f"2026-01-{day:02} {pick([0, 1, 2, 23]):02}:{pick([0, 30]):02}:00"
        x = pick([None, number, number, number_of(1, 23)])
        return (number, x, pick([None, 0, 1, 2]), pick([None, "p", "q"]), pick([None, *[at] * 9]))

    def change(self) -> dict[str, list[Row]]:
        changed: dict[str, list[Row]] = {}
        for table in self.random.sample(TABLES, self.random.choice([1, 2, 3])):
            rows, moved = self.tables[table], []
            for _ in range(self.random.randint(1, 3)):
                number = self.random.randint(1, self.IDS)
                before = rows.pop(number, None)
                if self.random.random() < 0.75:
                    rows[number] = self.row(number)
                moved += [row for row in (before, rows.get(number)) if row is not None]
            if moved:
                changed[table] = moved
        return changed


def values_sql(rows: list[Row]) -> str:
    """A SELECT of these rows."""
    casts = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in COLUMNS.items())
    shown = ", ".join("(" + ", ".join(map(_literal, row)) + ")" for row in rows)
    empty = "(" + ", ".join("NULL" for _ in COLUMNS) + ")"
    text = f"SELECT {casts} FROM VALUES {shown or empty} AS t({', '.join(COLUMNS)})"
    return text if rows else f"{text} WHERE false"


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) else str(value)


class Grammar:
    """Makes queries.

    Args:
        random: Where chance comes from.
    """

    SHAPES = (
        *("rows", "rows", "grouped", "grouped", "grouped", "ranked", "nested", "joined_back"),
        *("united", "distinct", "rolled_up", "full_key", "united_groups", "exploded", "cte"),
        *("interval_joined", "as_of_joined"),
    )

    def __init__(self, random: Random) -> None:
        self.random = random

    def query(self, shape: str = "") -> Query:
        """Returns one of some shape, or of any."""
        shape = shape or self.random.choice(self.SHAPES)
        made: Query = getattr(self, f"_{shape}")(shape)
        return made

    # what a FROM can be

    def _joined(self, most: int = 3) -> tuple[str, list[str], list[str], bool]:
        """A FROM clause, its aliases that are always visible, and whether all is by equality."""
        count = self.random.randint(1, most)
        text, aliases, plain = f"{self._table()} t0", ["t0"], True
        hidden: list[str] = []
        for n in range(1, count):
            kinds = ["JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]
            kind = self.random.choice([*kinds, "LEFT SEMI JOIN", "LEFT ANTI JOIN"])
            alias = f"t{n}"
            condition, equal = self._condition(self.random.choice(aliases), alias)
            text += f" {kind} {self._table()} {alias} ON {condition}"
            plain = plain and equal and kind in {"JOIN", "LEFT JOIN"}
            (hidden if "SEMI" in kind or "ANTI" in kind else aliases).append(alias)
        return text, aliases, hidden, plain

    def _condition(self, one: str, two: str) -> tuple[str, bool]:
        pick = self.random.choice
        equal = f"{one}.{pick(['id', 'x', 'x', 'y'])} = {two}.{pick(['id', 'x', 'y'])}"
        more = self.random.random()
        if more < 0.55:
            return equal, True
        if more < 0.65:
            return f"{one}.x <=> {two}.x", False
        if more < 0.75:
            return f"coalesce({one}.x, 1) = {two}.x", False
        if more < 0.85:
            return f"{equal} AND {one}.y > {two}.y", True
        if more < 0.92:
            return f"{equal} AND {two}.s = 'p'", True
        return f"{equal} AND ({one}.s = {two}.s OR {two}.y = 1)", True

    def _table(self) -> str:
        return self.random.choice(TABLES)

    def _where(self, aliases: list[str]) -> tuple[str, bool]:
        pick, one = self.random.choice, self.random.choice(aliases)
        x, y = pick(["id", "x", "y"]), pick(["id", "x", "y"])
        table = self._table()
        plain = ["", "", f"{one}.y > 0", f"{one}.s = 'p'", f"{one}.x IS NULL", f"{one}.x = 1"]
        other = [
            f"EXISTS (SELECT 1 FROM {table} e WHERE e.{x} = {one}.{y} AND e.y > 0)",
            f"NOT EXISTS (SELECT 1 FROM {table} e WHERE e.{x} = {one}.{y})",
            f"{one}.{x} IN (SELECT e.{y} FROM {table} e WHERE e.s = 'p')",
            f"{one}.{x} NOT IN (SELECT e.id FROM {table} e WHERE e.{y} = {one}.{y})",
            f"{one}.y >= (SELECT min(e.y) FROM {table} e WHERE e.{x} = {one}.{y})",
            f"(SELECT count(*) FROM {table} e WHERE e.{x} = {one}.{y}) = 0",
            f"(EXISTS (SELECT 1 FROM {table} e WHERE e.{x} = {one}.{y}) OR {one}.y = 1)",
            f"{one}.y > (SELECT avg(y) FROM {table})",
        ]
        if self.random.random() < 0.6:
            text = pick(plain)
            return (f" WHERE {text}" if text else ""), True
        return f" WHERE {pick(other)}", False

    def _source(self, most: int = 3) -> tuple[str, list[str], bool]:
        text, aliases, _, plain = self._joined(most)
        where, simple = self._where(aliases)
        return text + where, aliases, plain and simple

    def _expression(self, aliases: list[str]) -> str:
        pick = self.random.choice
        one, two = pick(aliases), pick(aliases)
        return pick(
            [
                *(f"{one}.x", f"{one}.x", f"{one}.s", f"{one}.y", f"{one}.id"),
                *(f"coalesce({one}.x, {two}.y)", f"concat({one}.s, {two}.s)"),
                *(f"date_trunc('day', {one}.at)", f"{one}.x % 2", f"coalesce({one}.id, {two}.id)"),
            ]
        )

    def _aggregates(self, aliases: list[str]) -> str:
        pick = self.random.choice
        y = f"{pick(aliases)}.y"
        pool = [
            *("count(*)", f"sum({y})", f"min({y})", f"max({y})", f"count(DISTINCT {y})"),
            *(f"sort_array(collect_list({y}))", f"avg({y})", f"sum({y}) FILTER (WHERE {y} > 0)"),
            f"sort_array(collect_list(struct({y} AS v, {pick(aliases)}.s AS w)))",
            f"count(DISTINCT {pick(aliases)}.x)",
        ]
        chosen = self.random.sample(pool, self.random.randint(1, 3))
        return ", ".join(f"{text} AS m{n}" for n, text in enumerate(chosen))

    # the shapes

    def _rows(self, shape: str) -> Query:
        source, aliases, plain = self._source()
        keys = [f"{alias}.id AS k{n}" for n, alias in enumerate(aliases)]
        shown = f"{self._expression(aliases)} AS v0, {self._expression(aliases)} AS v1"
        sql = f"SELECT {', '.join(keys)}, {shown} FROM {source}"
        return Query(shape, sql, tuple(f"k{n}" for n in range(len(keys))), plain)

    def _group(self, *, keys: int, most: int = 3) -> tuple[str, bool]:
        source, aliases, plain = self._source(most)
        groups = [f"{self._expression(aliases)} AS k{n}" for n in range(keys)]
        having = self.random.choice(["", "", " HAVING count(*) > 1", " HAVING sum(t0.y) > 1"])
        by = ", ".join(str(n + 1) for n in range(keys))
        aggregates = self._aggregates(aliases)
        text = f"SELECT {', '.join(groups)}, {aggregates} FROM {source} GROUP BY {by}{having}"
        return text, plain

    def _grouped(self, shape: str) -> Query:
        count = self.random.choice([1, 1, 2])
        sql, plain = self._group(keys=count)
        return Query(shape, sql, tuple(f"k{n}" for n in range(count)), plain)

    def _ranked(self, shape: str) -> Query:
        source, aliases, _ = self._source(2)
        ids = [f"{alias}.id" for alias in aliases]
        order = f"{self.random.choice(aliases)}.y"
        shown = ", ".join(f"{name} AS k{n}" for n, name in enumerate(ids))
        rank = f"row_number() OVER (PARTITION BY p ORDER BY o DESC, {_names('k', len(ids))}) AS rn"
        inner = f"SELECT {shown}, {self._expression(aliases)} AS p, {order} AS o FROM {source}"
        sql = f"SELECT * FROM (SELECT *, {rank} FROM ({inner})) WHERE rn <= 2"
        keys = tuple(f"k{n}" for n in range(len(ids)))
        return Query(shape, sql, self.random.choice([keys, ("p", "rn")]))

    def _nested(self, shape: str) -> Query:
        inner, _ = self._group(keys=2, most=2)
        outer = "k0, count(*) AS n, max(m0) AS top, sort_array(collect_list(k1)) AS l"
        if self.random.random() < 0.3:
            return Query(shape, f"SELECT m0, count(*) AS n FROM ({inner}) GROUP BY m0", ("m0",))
        return Query(shape, f"SELECT {outer} FROM ({inner}) GROUP BY k0", ("k0",))

    def _joined_back(self, shape: str) -> Query:
        one, _ = self._group(keys=1, most=2)
        two, _ = self._group(keys=1, most=1)
        kind = self.random.choice(["LEFT JOIN", "JOIN", "FULL JOIN"])
        on = self.random.choice(["t.x", "t.id", "t.y", "t.s"])
        more = self.random.choice(["", "", " AND g.m0 IS NOT NULL"])
        sql = (
            f"SELECT t.id AS k, g.k0 AS j, g.m0 AS u, h.m0 AS v FROM {self._table()} t"
            f" {kind} ({one}) g ON CAST({on} AS string) = CAST(g.k0 AS string){more}"
            f" LEFT JOIN ({two}) h ON CAST(t.x AS string) = CAST(h.k0 AS string)"
        )
        if kind != "FULL JOIN" and self.random.random() < 0.5:
            sql = (
                f"SELECT k, count(*) AS n, sort_array(collect_list(v)) AS l FROM ({sql}) GROUP BY k"
            )
            return Query(shape, sql, ("k",))
        return Query(shape, sql, ("k", "j"))

    def _united(self, shape: str) -> Query:
        one, _, _ = self._source(1)
        two, _, _ = self._source(1)
        left = f"SELECT 'l' AS side, t0.id, t0.x AS v FROM {one}"
        right = f"SELECT 'r' AS side, t0.id, t0.y AS v FROM {two}"
        return Query(shape, f"{left} UNION ALL {right}", ("side", "id"))

    def _united_groups(self, shape: str) -> Query:
        one, _, _ = self._source(2)
        two, _, _ = self._source(2)
        kind = self.random.choice(["UNION ALL", "UNION", "EXCEPT", "INTERSECT"])
        both = f"SELECT t0.x AS k, t0.y AS v FROM {one} {kind} SELECT t0.y, t0.x FROM {two}"
        sql = f"SELECT k, count(*) AS n, sum(v) AS t FROM ({both}) GROUP BY k"
        return Query(shape, sql, ("k",))

    def _distinct(self, shape: str) -> Query:
        source, aliases, plain = self._source()
        one, two = self._expression(aliases), self._expression(aliases)
        return Query(
            shape, f"SELECT DISTINCT {one} AS k, {two} AS j FROM {source}", ("k", "j"), plain
        )

    def _rolled_up(self, shape: str) -> Query:
        source, aliases, _ = self._source(2)
        one = self._expression(aliases)
        inner = f"SELECT {one} AS p, t0.s AS q, t0.y AS y FROM {source}"
        how = self.random.choice(["ROLLUP", "CUBE"])
        sql = (
            "SELECT p AS k, q AS j, grouping_id() AS g, count(*) AS n, sum(y) AS t"
            f" FROM ({inner}) GROUP BY {how} (p, q)"
        )
        return Query(shape, sql, ("k", "j", "g"))

    def _full_key(self, shape: str) -> Query:
        one, two = self._table(), self._table()
        on = self.random.choice(["l.id = r.id", "l.id = r.id AND l.x = r.x", "l.id <=> r.x"])
        sql = (
            "SELECT coalesce(l.id, r.id) AS k, count(*) AS n, sum(l.y) AS u, sum(r.y) AS v"
            f" FROM {one} l FULL JOIN {two} r ON {on} GROUP BY 1"
        )
        return Query(shape, sql, ("k",))

    def _exploded(self, shape: str) -> Query:
        source, aliases, _ = self._source(2)
        one = self._expression(aliases)
        inner = f"SELECT {one} AS p, explode(array(t0.x, t0.y, t0.x)) AS e FROM {source}"
        sql = f"SELECT p AS k, e AS j, count(*) AS n FROM ({inner}) GROUP BY p, e"
        return Query(shape, sql, ("k", "j"))

    def _cte(self, shape: str) -> Query:
        inner, _ = self._group(keys=1, most=2)
        sql = (
            f"WITH g AS ({inner}) SELECT l.k0 AS k, l.m0 AS u, r.m0 AS v, t.id AS i FROM g l"
            f" LEFT JOIN g r ON l.k0 = r.k0 LEFT JOIN {self._table()} t"
            " ON CAST(t.x AS string) = CAST(l.k0 AS string)"
        )
        return Query(shape, sql, ("k", "i"))

    def _interval_joined(self, shape: str) -> Query:
        """Rows of two tables of which one follows the other within some time."""
        pick = self.random.choice
        kind, width = (
            pick(["JOIN", "LEFT JOIN", "LEFT JOIN"]),
            pick(["0 HOURS", "2 HOURS", "1 DAY"]),
        )
        inside = pick(
            [
                f"r.at BETWEEN l.at AND l.at + INTERVAL {width}",
                f"r.at BETWEEN l.at - INTERVAL {width} AND l.at",
                f"r.at >= l.at AND r.at < l.at + INTERVAL {width}",
                f"r.at BETWEEN l.at - INTERVAL {width} AND l.at + INTERVAL {width}",
            ]
        )
        equal = f"r.{pick(['id', 'x', 'x', 'y'])} = l.{pick(['id', 'x', 'x'])}"
        where, plain = self._where(["l"])
        source = f"{self._table()} l {kind} {self._table()} r ON {equal} AND {inside}{where}"
        if self.random.random() < 0.3:
            listed = "l.id AS k, r.id AS j, l.at, r.at AS then, r.s AS v"
            return Query(shape, f"SELECT {listed} FROM {source}", ("k", "j"), plain)
        measured = "count(r.id) AS n, min(r.at) AS first, sum(r.y) AS t"
        if self.random.random() < 0.3:
            by = pick(["x", "s"])
            sql = f"SELECT l.{by} AS k, {measured} FROM {source} GROUP BY l.{by}"
            return Query(shape, sql, ("k",), plain)
        sql = f"SELECT l.id AS k, l.at, {measured} FROM {source} GROUP BY l.id, l.at"
        return Query(shape, sql, ("k",), plain)

    def _near_joined(self, shape: str) -> Query:
        """Rows of a table with those of one or two others that are near in time, or of one key."""
        pick = self.random.choice
        one, two, three = self.random.sample(TABLES, 3)

        def near(this: str, other: str) -> str:
            width = pick(["0 HOURS", "2 HOURS", "36 HOURS"])
            return pick(
                [
                    f"{this}.at BETWEEN {other}.at AND {other}.at + INTERVAL {width}",
                    f"{this}.at - INTERVAL {width} <= {other}.at AND {other}.at < {this}.at",
                    f"{this}.at >= {other}.at - INTERVAL {width}",
                    f"{this}.at = {other}.at",
                    f"{this}.x = {other}.x",
                    f"{this}.y <= {other}.y",
                ]
            )

        on = f"r.{pick(['id', 'x'])} = l.{pick(['id', 'x'])} AND {near('r', 'l')}"
        more = f"m.{pick(['id', 'x', 's'])} = {pick(['l', 'l', 'r'])}.{pick(['id', 'x'])}"
        also = pick(["", f" AND {near('m', 'l')}", f" AND {near('m', 'r')}"])
        join, joins = pick(["JOIN", "LEFT JOIN", "LEFT JOIN"]), pick(["JOIN", "LEFT JOIN"])
        kind = pick(["two", "two", "three", "there", "grouped", "mirrored", "full"])
        if kind == "there":
            word = pick(["EXISTS", "NOT EXISTS"])
            condition = f"{word} (SELECT 1 FROM {two} r WHERE {on})"
            sql = f"SELECT l.id AS k, l.at, l.s FROM {one} l WHERE {condition}"
            return Query(shape, sql, ("k",))
        if kind == "three":
            source = f"{one} l {join} {two} r ON {on} {joins} {three} m ON {more}{also}"
            sql = f"SELECT l.id AS k, r.id AS j, m.id AS i, l.at, m.at AS u FROM {source}"
            return Query(shape, sql, ("k", "j", "i"))
        if kind == "grouped":
            numbered = "row_number() OVER (PARTITION BY x ORDER BY at, id) AS n"
            inner = pick([two, f"(SELECT *, {numbered} FROM {two})"])
            source = f"{one} l {join} {inner} r ON {on}"
            sql = f"SELECT l.id AS k, count(r.id) AS n, max(r.at) AS u FROM {source} GROUP BY l.id"
            return Query(shape, sql, ("k",))
        words = {"mirrored": "RIGHT JOIN", "full": "FULL JOIN"}
        source = f"{one} l {words.get(kind, join)} {two} r ON {on}"
        sql = f"SELECT l.id AS k, r.id AS j, l.at, r.at AS u, l.s || r.s AS v FROM {source}"
        return Query(shape, sql, ("k", "j"))

    def _as_of_joined(self, shape: str) -> Query:
        """Rows of a table with what another had when they were: the other is a history."""
        pick = self.random.choice
        who, kind = pick(["id", "x", "y"]), pick(["JOIN", "LEFT JOIN", "LEFT JOIN"])
        until = pick(
            [
                "at + y * INTERVAL 12 HOURS",  # NULL where y is: it lasts; states may overlap
                f"lead(at) OVER (PARTITION BY {who} ORDER BY at, id)",  # each until the next
            ]
        )
        states = f"SELECT id, {who} AS who, s, y, at AS valid_from, {until} AS valid_to"
        one = pick(["id", "x", "x"])
        then = "l.at >= h.valid_from AND (h.valid_to IS NULL OR l.at < h.valid_to)"
        where, plain = self._where(["l"])
        source = (
            f"{self._table()} l {kind} ({states} FROM {self._table()}) h"
            f" ON h.who = l.{one} AND {then}{where}"
        )
        if self.random.random() < 0.6:
            sql = f"SELECT l.id AS k, h.id AS j, h.s AS v, h.valid_to AS until FROM {source}"
            return Query(shape, sql, ("k", "j"), plain)
        by = pick(["h.s", "date_trunc('day', l.at)"])
        sql = f"SELECT {by} AS k, count(*) AS n, sum(h.y) AS t FROM {source} GROUP BY 1"
        # from what a state says nothing leads to those of the key that it ended with
        return Query(shape, sql, ("k",), plain and not until.startswith("lead"))


def _names(letter: str, count: int) -> str:
    return ", ".join(f"{letter}{n}" for n in range(count))
