from __future__ import annotations

from dataclasses import FrozenInstanceError, InitVar, dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest

from eventstore.errors import NameRefusedError, UndeclaredError
from eventstore.privacy.personal import Personal  # noqa: TC001  # read when a class is declared
from eventstore.serialization import registry
from eventstore.serialization.registry import EventData, EventTypes, upcast


@dataclass(frozen=True)
class Address:
    street: Personal[str]


@pytest.fixture
def types() -> EventTypes:
    return EventTypes()


def test_a_class_becomes_a_frozen_dataclass_and_is_found_by_class_object_and_name(types):
    @types.event("order.placed", version=3, public=True)
    class OrderPlaced:
        order_id: str
        total: Decimal = Decimal(0)

    placed = OrderPlaced("o1")
    found = types.of(OrderPlaced)

    assert found is types.of(placed) is types.named("order.placed")
    assert ("order.placed", 3, OrderPlaced, True) == (
        found.name,
        found.version,
        found.cls,
        found.public,
    )
    assert {"order_id": str, "total": Decimal} == found.fields
    with pytest.raises(FrozenInstanceError):
        placed.order_id = "o2"
    assert not hasattr(placed, "__dict__")


def test_a_frozen_dataclass_stays_the_class_it_is(types):
    @dataclass(frozen=True)
    class Placed:
        order_id: str
        kind: ClassVar[str] = "order"

    assert types.event("order.placed")(Placed) is Placed
    assert {"order_id": str} == types.of(Placed).fields


def test_a_type_that_is_local_to_a_function_is_found(types):
    @dataclass(frozen=True)
    class Line:
        sku: str

    @types.event("order.placed")
    class Placed:
        lines: list[Line]

    assert {"lines": list[Line]} == types.of(Placed).fields


def test_a_subclass_of_a_declared_event_is_not_declared(types):
    @types.event("order.placed")
    class Placed:
        order_id: str

    class Special(Placed):
        pass

    with pytest.raises(UndeclaredError, match="Special is not a declared event"):
        types.of(Special("o1"))


def test_a_name_is_declared_once(types):
    @types.event("order.placed")
    class Placed:
        order_id: str

    with pytest.raises(UndeclaredError, match=r"order\.placed is declared twice") as refused:

        @types.event("order.placed")
        class Again:
            order_id: str

    assert "add an upcaster" in refused.value.hint
    with pytest.raises(UndeclaredError, match="declared twice"):
        types.untyped("order.placed")


def test_a_class_is_declared_under_one_name(types):
    @types.event("order.placed")
    class Placed:
        order_id: str

    with pytest.raises(UndeclaredError, match="declared as two event types"):
        types.event("order.put")(Placed)
    assert "order.put" not in types


@pytest.mark.parametrize("name", ["", "$snapshot", "order placed", "a\0", 5])
def test_a_type_needs_a_name(types, name):
    with pytest.raises(NameRefusedError):
        types.event(name)


@pytest.mark.parametrize("version", [0, -1, 2**15, 1.0, True, "1"])
def test_versions_are_counted_from_one(types, version):
    with pytest.raises(UndeclaredError, match="no such version"):
        types.event("order.placed", version=version)
    with pytest.raises(UndeclaredError, match="no such version"):
        types.upcaster("order.placed", version)


def refused(types: EventTypes, cls: type, **options: Any) -> str:
    with pytest.raises(UndeclaredError) as caught:
        types.event("order.placed", **options)(cls)
    assert caught.value.hint
    assert [] == list(types)
    return f"{caught.value.message}: {caught.value.detail}"


def test_a_class_that_can_be_changed_is_refused(types):
    @dataclass
    class Placed:
        order_id: str

    assert "is mutable" in refused(types, Placed)


def test_a_class_of_another_kind_is_refused(types):
    class Tuple(NamedTuple):
        order_id: str

    class Struct(msgspec.Struct):
        order_id: str

    assert "is not a dataclass" in refused(types, Tuple)
    assert "is not a dataclass" in refused(types, Struct)


def test_fields_that_the_class_is_not_made_from_are_refused(types):
    @dataclass(frozen=True)
    class Derived:
        order_id: str
        length: int = field(init=False, default=0)

    @dataclass(frozen=True)
    class Initialised:
        order_id: str
        secret: InitVar[int]

    assert "field length" in refused(types, Derived)
    assert "field secret" in refused(types, Initialised)


def test_a_type_that_is_not_there_is_named(types):
    class Placed:
        order_id: Missing  # noqa: F821  # that is the point

    assert "undefined type: Missing" in refused(types, Placed)


def test_personal_fields_need_a_subject(types):
    class Registered:
        customer_id: str
        email: Personal[str]

    assert "no subject: email" in refused(types, Registered)
    assert "must be a field that is not personal" in refused(types, Registered, subject="customer")
    assert "must be a field that is not personal" in refused(types, Registered, subject="email")
    types.event("customer.registered", subject="customer_id")(Registered)
    assert ("email",) == types.named("customer.registered").personal_fields


def test_a_part_of_a_field_is_not_personal(types):
    class InList:
        customer_id: str
        emails: list[Personal[str]]

    class InUnion:
        customer_id: str
        email: Personal[str] | None

    class InClass:
        customer_id: str
        address: dict[str, Address]

    class InPersonal:
        customer_id: str
        address: Personal[Address]

    for cls, name in (
        (InList, "emails"),
        (InUnion, "email"),
        (InClass, "address"),
        (InPersonal, "address"),
    ):
        assert f"only a whole field of order.placed can be personal: field {name}" == refused(
            types, cls, subject="customer_id"
        )


def test_what_is_not_known_or_newer_is_told_apart(types):
    types.untyped("order.placed", version=2)

    with pytest.raises(UndeclaredError, match=r"^unknown type order\.paid$"):
        types.readable("order.paid", 1)
    newer = r"^version 3 of order\.placed is newer than this program's 2$"
    with pytest.raises(UndeclaredError, match=newer):
        types.readable("order.placed", 3)
    with pytest.raises(UndeclaredError, match=newer):
        types.path("order.placed", 3)


def test_upcasters_form_one_chain_from_the_oldest(types):
    types.untyped("order.placed", version=3)
    first = types.upcaster("order.placed", 1)(lambda data: data | {"two": 2})
    second = types.upcaster("order.placed", 2)(lambda data: data | {"three": 3})

    assert [first, second] == [step.function for step in types.path("order.placed", 1)]
    assert [second] == [step.function for step in types.path("order.placed", 2)]
    assert () == types.path("order.placed", 3)
    assert [] == types.check()
    with pytest.raises(UndeclaredError, match="two upcasters convert version 1"):
        types.upcaster("order.placed", 1)(lambda data: data)


def test_a_gap_in_the_versions_is_reported_up_front_and_when_it_is_needed(types):
    types.untyped("order.placed", version=4)
    types.upcaster("order.placed", 1)(lambda data: data)
    types.upcaster("order.placed", 3)(lambda data: data)
    types.upcaster("order.placed", 4)(lambda data: data)
    types.upcaster("order.paid", 1)(lambda data: data)

    assert [
        "an upcaster converts version 1 of order.paid, which is unknown",
        "an upcaster converts version 4 of order.placed, latest is 4",
        "no upcaster converts version 2 of order.placed",
    ] == types.check()
    with pytest.raises(UndeclaredError, match="no upcaster converts version 2"):
        types.path("order.placed", 1)
    assert 1 == len(types.path("order.placed", 3))


def test_an_event_class_takes_its_own_upcasters(types):
    @types.event("order.placed", version=2)
    class Placed:
        order_id: str

    @Placed.upcast(from_version=1)
    def step(data: dict[str, Any]) -> dict[str, Any]:
        return data

    assert step is types.path("order.placed", 1)[0].function


def test_a_field_named_upcast_stays_a_field(types):
    @types.event("order.placed", version=2)
    class Placed:
        upcast: str

    assert "yes" == Placed("yes").upcast


def test_sealed_fields_are_those_of_the_next_version_unless_said(types):
    @types.event("customer.registered", version=4, subject="customer_id")
    class Registered:
        customer_id: str
        email: Personal[str]
        phone: Personal[str]

    for version, personal in ((1, ()), (2, ["mail"]), (3, None)):
        types.upcaster("customer.registered", version, personal=personal)(lambda data: data)

    assert [(), ("mail",), ("email", "phone"), ("email", "phone")] == [
        types.sealed_fields("customer.registered", version) for version in (1, 2, 3, 4)
    ]


def test_a_type_without_a_class_is_event_data(types):
    declared = types.untyped("legacy.happened", version=2)

    assert (EventData, 2) == (declared.cls, declared.version)
    with pytest.raises(UndeclaredError):
        types.of(EventData("legacy.happened", {}))


def test_the_module_declares_in_its_own_registry(monkeypatch):
    monkeypatch.setattr(registry, "declared", EventTypes())

    @registry.event("order.placed", version=2)
    class Placed:
        order_id: str

    @upcast(Placed, from_version=1)
    def step(data: dict[str, Any]) -> dict[str, Any]:
        return data

    assert [Placed] == [each.cls for each in registry.declared]
    assert step is registry.declared.path("order.placed", 1)[0].function
