from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.capture import CaptureSpec
from cdc.column_rule import ColumnRules, treated
from cdc.connect.connector import connector_config
from cdc.errors import ColumnRuleError
from cdc.postgres.address import DatabaseAddress
from cdc.table import Column, ColumnKind, TableName, TableSchema, Treatment
from cdc.upkeep.difference import MASK, Part, of_properties

PEOPLE = TableName("public", "people")
SCHEMA = TableSchema(
    PEOPLE,
    (
        Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
        Column("email", ColumnKind.TEXT, "text"),
        Column("ssn", ColumnKind.TEXT, "text"),
        Column("born", ColumnKind.DATE, "date"),
        Column("income", ColumnKind.NUMERIC, "numeric(12,2)", 12, 2),
    ),
    ("id",),
)
SALT = "a secret of sixteen or more"
DSN = "postgresql://u:p@db:5432/shop"
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


def config(rules: ColumnRules, **settings: str) -> dict[str, str]:
    spec = CaptureSpec(
        name="shop",
        dsn=DSN,
        tables=(PEOPLE,),
        connect_url="",
        kafka_bootstrap="",
        columns={PEOPLE: rules},
        salt=SALT,
        **settings,
    )
    return connector_config(spec, DatabaseAddress.parse(DSN))


def leaves_out(found: dict[str, str], column: str) -> bool:
    # as Debezium does it: split at commas without a backslash, whole names, whatever case
    patterns = re.split(r"(?<!\\),", found.get("column.exclude.list", ""))
    names = (f"public.people.{column}", f"public.PEOPLE.{column}")
    one, other = (
        any(re.fullmatch(java(p), name, re.IGNORECASE) for p in patterns if p) for name in names
    )
    assert not other, "a table that differs by case has no rules"
    return one


def java(pattern: str) -> str:
    # Python writes the very end with a capital letter
    return pattern.replace(r")\z)", r")\Z)")


def test_rules_make_the_table_as_it_leaves_the_source() -> None:
    rules = ColumnRules(exclude=["ssn"], hash=["email", "income"], mask={"born": 4})

    found = rules.applied(SCHEMA)

    assert ["id", "email", "born", "income"] == [column.name for column in found.columns]
    assert {ColumnKind.INTEGER, ColumnKind.TEXT} == {column.kind for column in found.columns}
    assert Treatment(4) == found.by_name["born"].treatment
    assert (None, None) == (found.by_name["income"].precision, found.by_name["income"].scale)
    assert SCHEMA.key == found.key


def test_with_an_allow_list_whatever_is_not_on_it_stays() -> None:
    rules = ColumnRules(only=["id"], hash=["email"])

    assert ["id", "email"] == [column.name for column in rules.applied(SCHEMA).columns]
    assert not rules.takes("added later")


@pytest.mark.parametrize(
    "rules",
    [
        ColumnRules(exclude=["id"]),
        ColumnRules(hash=["id"]),
        ColumnRules(mask={"id": 3}),
        ColumnRules(only=["email"]),
    ],
    ids=["excluded", "hashed", "masked", "not allowed"],
)
def test_a_column_of_the_key_cannot_be_hidden(rules: ColumnRules) -> None:
    with pytest.raises(ColumnRuleError, match="column id of the key"):
        rules.applied(SCHEMA)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ColumnRules(exclude=["a"], hash=["a"]),
        lambda: ColumnRules(only=["a"], mask={"a": 3}),
        lambda: ColumnRules(only=["a"], exclude=["b"]),
        lambda: ColumnRules(mask={"a": 0}),
    ],
)
def test_rules_that_contradict_each_other_are_refused(make: object) -> None:
    with pytest.raises(ColumnRuleError):
        make()  # type: ignore[operator]


def test_a_name_that_no_column_has_is_found() -> None:
    rules = ColumnRules(exclude=["snn"], hash=["email"], mask={"born ": 3})

    assert ["born ", "snn"] == rules.unknown(SCHEMA)


@pytest.mark.parametrize("salt", [None, "", "short"])
def test_hashing_without_a_secret_is_refused(salt: str | None) -> None:
    with pytest.raises(ColumnRuleError, match="salt"):
        CaptureSpec(
            name="shop",
            dsn=DSN,
            tables=(PEOPLE,),
            connect_url="",
            kafka_bootstrap="",
            columns={PEOPLE: ColumnRules(hash=["email"])},
            salt=salt,
        )


@given(taken=st.sets(NAMES, min_size=1, max_size=5), hidden=st.sets(NAMES, max_size=5))
def test_the_connector_leaves_out_exactly_what_the_rules_do(
    taken: set[str], hidden: set[str]
) -> None:
    only = ColumnRules(only=taken)
    without = ColumnRules(exclude=hidden)

    for name in taken | hidden:
        assert leaves_out(config(only), name) == (not only.takes(name)), name
        assert leaves_out(config(without), name) == (not without.takes(name)), name


def test_the_connector_is_told_every_treatment_and_asks_for_it_before_all_else() -> None:
    found = config(ColumnRules(hash=["email"], mask={"born": 4}))

    assert found["converters"] == "rules,exact"
    assert [("public.people", "born", "mask:4"), ("public.people", "email", "hash")] == [
        tuple(found[f"rules.{number}.{part}"] for part in ("of", "column", "form"))
        for number in (0, 1)
    ]
    assert "rules.2.of" not in found


def test_the_salt_is_referred_to_and_never_shown() -> None:
    plain = config(ColumnRules(hash=["email"]))
    referred = config(ColumnRules(hash=["email"]), connector_salt="${env:SALT}")

    assert "${env:SALT}" == referred["rules.salt.secret"]
    assert SALT not in str(referred)
    changed = of_properties(Part.CONNECTOR, "c", plain, plain | {"rules.salt.secret": "other"})
    assert [(MASK, MASK)] == [(d.have, d.want) for d in changed]


def test_what_leaves_is_the_same_for_equal_values_and_tells_nothing_of_others() -> None:
    hashed = {treated(Treatment(), text, SALT) for text in ("a", "b", "", "a")}

    assert 3 == len(hashed)
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in hashed)
    assert hashed.isdisjoint(treated(Treatment(), text, SALT + "x") for text in ("a", "b", ""))
    assert {"***"} == {treated(Treatment(3), text, SALT) for text in ("a", "longer")}
