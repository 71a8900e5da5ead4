"""Rows of the project's seeds: as they first come, then corrected, then by chance."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.oracles.seed_web import HOUR, MINUTE, NINE, TABLES, Row, Web, at

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


def first(web: Web) -> None:
    minutes = (0, 1, 5, 5.9, 6, 7, 11, 13, 16, 17, 21, 23)
    times = (NINE + each * MINUTE for each in minutes)
    web.put("events", *({"id": n, "at": t, "came": t + MINUTE} for n, t in enumerate(times)))
    clock = ("00:00", "00:59", "01:00", "01:59", "04:59", "05:00", "07:59", "08:00")
    times = [at("23:59:59", 2), at("00:00:00", 3), *(at(f"09:{each}") for each in clock)]
    web.put(
        "orders",
        *({"id": n, "at": t, "shop": "s", "customer": n % 2} for n, t in enumerate(times)),
    )
    web.put("signals", signal(1, "quiet", "08:00:00"), signal(2, "a", "09:00:00"))
    web.put("signals", signal(3, "ahead", "09:00:10", 365 * 24 * HOUR))
    web.put(
        "payments",
        {"id": 1, "order_id": 2, "amount": 5, "at": at("09:10:00")},
        {"id": 2, "order_id": 3, "amount": 5, "at": at("09:30:59")},
        {"id": 3, "order_id": 4, "amount": 5, "at": at("09:31:01")},  # a second too late
        {"id": 4, "order_id": 20, "amount": 9, "at": at("09:00:30")},  # its order is on its way
    )
    web.put(
        "searches",
        *(
            {"id": n, "session": s, "term": term, "at": at("09:00:00")}
            for n, (s, term) in enumerate(
                [("A", "chair"), ("B", "chair"), ("C", "desk"), ("D", "desk")]
            )
        ),
    )
    web.put(
        "clicks",
        {"id": 1, "session": "A", "person": 1, "at": at("09:10:00")},
        {"id": 2, "session": "C", "person": 1, "at": at("10:00:00")},
        {"id": 3, "session": "D", "person": 2, "at": at("10:00:01")},
    )
    web.put("people", {"id": 1, "name": "Anna"})
    web.put(
        "people_history",
        {"id": 1, "name": "Ann", "valid_from": at("08:00:00"), "valid_to": at("09:30:00")},
        {"id": 1, "name": "Anna", "valid_from": at("09:30:00"), "valid_to": None},
    )
    web.put("steps", {"id": 4, "order_id": 1, "kind": "shipped", "at": at("09:20:00")})
    web.put("purchases", {"id": 1, "customer": 1, "amount": 900, "at": at("09:40:00")})
    web.put("charges", charge(2, "declined", "09:05:00"), charge(3, "paid", "09:20:00"))
    web.put(
        "posts",
        {"id": 1, "author": "ann", "text": "one", "at": at("09:00:00")},
        {"id": 2, "author": "bo", "text": "two", "at": at("09:01:00")},
    )
    web.put("follows", {"follower": "cy", "followee": "ann"})


def corrected(web: Web) -> None:
    web.put("events", {"id": 50, "at": at("09:02:00"), "came": at("09:08:00")})  # a straggler
    web.put("events", {"id": 3, "at": at("09:19:00"), "came": at("09:20:00")})
    web.drop("events", 10)
    web.put("orders", {"id": 20, "shop": "s", "customer": 1, "at": at("09:00:30")})
    web.put("orders", {"id": 3, "shop": "s", "customer": 1, "at": at("09:03:00")})
    web.drop("orders", 9)
    web.put("signals", signal(4, "a", "09:01:00"), signal(5, "ahead", "09:01:10", 365 * 24 * HOUR))
    web.put("payments", {"id": 3, "order_id": 4, "amount": 5, "at": at("09:31:00")})
    web.drop("payments", 1)
    web.put("clicks", {"id": 4, "session": "B", "person": 2, "at": at("09:06:00")})
    web.put("clicks", {"id": 2, "session": "C", "person": 1, "at": at("09:20:00")})
    web.drop("clicks", 3)
    web.put("people", {"id": 1, "name": "Annie"}, {"id": 2, "name": "Bo"})
    web.put(
        "people_history",
        {"id": 1, "name": "Ann", "valid_from": at("08:00:00"), "valid_to": at("09:15:00")},
        {"id": 1, "name": "Annie", "valid_from": at("09:15:00"), "valid_to": at("09:30:00")},
    )
    web.put("steps", {"id": 3, "order_id": 1, "kind": "paid", "at": at("09:10:00")})
    web.put("charges", charge(1, "declined", "09:00:00"))  # earlier than the purchase, and late
    web.put("posts", {"id": 3, "author": "bo", "text": "three", "at": at("08:00:00")})
    web.drop("posts", 1)
    web.put("follows", {"follower": "cy", "followee": "bo"})


def charge(number: int, status: str, clock: str) -> Row:
    return {"id": number, "customer": 1, "status": status, "at": at(clock)}


def signal(number: int, device: str, clock: str, ahead: timedelta = timedelta(0)) -> Row:
    """What a device sent at some time, by a clock that may be ahead."""
    sent = at(clock)
    return {"id": number, "device": device, "at": sent + ahead, "came": sent + MINUTE / 60}


def by_chance(web: Web, chance: Random) -> None:
    """Inserts, changes and deletes rows of each table, but for those whose devices are told of."""

    def moment() -> datetime:
        return NINE + chance.randint(0, 180) * MINUTE / 2

    def pick(*among: Any) -> Any:
        return chance.choice(among)

    made: dict[str, Callable[[], Row]] = {
        "events": lambda: {"came": pick(None, NINE, moment(), NINE + HOUR)},
        "orders": lambda: {"shop": pick("s", "t"), "customer": pick(0, 1)},
        "payments": lambda: {"order_id": chance.randint(0, 12), "amount": pick(5, 9)},
        "searches": lambda: {"session": pick(*"ABC"), "term": pick("chair", "desk")},
        "clicks": lambda: {"session": pick(*"ABC"), "person": pick(1, 2, 3)},
        "people": lambda: {"name": pick("Ann", "Bo")},
        "steps": lambda: {"order_id": pick(1, 2, 3, 4), "kind": pick("paid", "shipped", "asked")},
        "charges": lambda: {"customer": pick(0, 1), "status": pick("paid", "declined", "declined")},
        "purchases": lambda: {"customer": pick(0, 1), "amount": pick(5, 500, 501, 900)},
        "posts": lambda: {"author": pick("ann", "bo", "cy"), "text": pick("x", "y")},
    }
    for table, values in made.items():
        for _ in range(5):
            row = {"id": chance.randint(0, 12), "at": moment()} | values()
            web.put(table, {name: row[name] for name in TABLES[table][1]})
        for _ in range(2):
            web.drop(table, chance.randint(0, 12))
    for _ in range(2):
        web.put("follows", {"follower": pick("cy", "di"), "followee": pick("ann", "bo", "cy")})
        web.drop("follows", pick("cy", "di"), pick("ann", "bo", "cy"))
    for person in (1, 2):  # states that follow each other, the last of which lasts
        for key in [key for key in web.rows["people_history"] if key[0] == person]:
            web.drop("people_history", *key)
        times = sorted({moment() for _ in range(3)})
        for since, until in zip(times, [*times[1:], None], strict=True):
            state = {"id": person, "name": pick("Ann", "Bo"), "valid_from": since}
            web.put("people_history", state | {"valid_to": until})
