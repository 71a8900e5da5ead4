"""A member of a consumer group whose topic grows while it polls shortly."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from kafka.structs import MemberState

from cdc.broker.client.admin import admin
from cdc.broker.group.member import GroupMember
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cdc.broker.topics.extent import PartitionId

pytestmark = pytest.mark.integration


class AssignedPartitions:
    """The partitions that a member has been given."""

    def __init__(self) -> None:
        self.mine: set[PartitionId] = set()

    def assigned(self, partitions: set[PartitionId]) -> None:
        self.mine |= partitions

    def release(self, partitions: set[PartitionId]) -> None:
        self.mine -= partitions

    def wait_idle(self, partitions: set[PartitionId], timeout_s: float) -> bool:  # noqa: ARG002
        return True

    def committable(
        self,
        partitions: Iterable[PartitionId] | None = None,  # noqa: ARG002
    ) -> dict[PartitionId, int]:
        return {}

    def forget(self, partitions: set[PartitionId]) -> None:
        self.mine -= partitions


@pytest.fixture
def topic(kafka_bootstrap: str) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:8]}.public.orders"
    with admin(kafka_bootstrap) as client:
        client.create_topics({name: {"num_partitions": 1}}, wait_for_metadata=True)
        yield name
        client.delete_topics([name])


@pytest.fixture
def owner() -> AssignedPartitions:
    return AssignedPartitions()


@pytest.fixture
def join(
    kafka_bootstrap: str, topic: str, owner: AssignedPartitions
) -> Iterator[Callable[[], GroupMember]]:
    with ExitStack() as members:

        def join() -> GroupMember:
            member = GroupMember(
                kafka_bootstrap, f"g-{topic}", [topic], owner, session_timeout_s=30, handover_s=1
            )
            members.callback(member.close)
            until(lambda: owner.mine, lambda: member.poll(0.1))
            return member

        yield join


def until(holds: Callable[[], object], turn: Callable[[], object] = lambda: None) -> None:
    def held() -> object:
        turn()
        return holds()

    if not holds():
        wait_until(held, pause_s=0.01)


def test_its_first_join_knows_the_partitions_so_no_second_one_follows(
    join: Callable[[], GroupMember], topic: str, owner: AssignedPartitions
) -> None:
    join().close()  # the brokers make the first member of a new group wait, and that hides it
    member = join()
    joined = _generation(member)
    for _ in range(3):
        member._client.topics()  # what it knows of the topics is refreshed
        member.poll(1.0)

    assert {(topic, 0)} == owner.mine
    assert joined == _generation(member)


def test_a_join_that_ends_between_two_polls_is_not_forgotten(
    kafka_bootstrap: str, join: Callable[[], GroupMember], topic: str, owner: AssignedPartitions
) -> None:
    member = join()
    joined = _generation(member)
    with admin(kafka_bootstrap) as client:
        client.create_partitions({topic: 2})
        until(lambda: len(member.partitions([topic])) == 2, member._client.topics)
        until(lambda: _state(member) is MemberState.REBALANCING, lambda: member.poll(0.001))
        until(lambda: _generation(member) > joined)
        until(lambda: _told(client, f"g-{topic}") == "Stable")
    until(lambda: _state(member) is MemberState.STABLE, lambda: member.poll(0.001))

    until(lambda: owner.mine == {(topic, 0), (topic, 1)}, lambda: member.poll(0.1))
    assert member.commit({(topic, 0): 0, (topic, 1): 0})


def _state(member: GroupMember) -> MemberState:
    return member._client.group_metadata().state


def _generation(member: GroupMember) -> int:
    number: int = member._client.group_metadata().generation_id
    return number


def _told(client: Any, group: str) -> str:
    """The state of a group as the broker tells it."""
    state: str = client.describe_groups([group])[group]["group_state"]
    return state
