"""The shape of what a benchmark tells."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure.

    Attributes:
        metric: What was measured, with its unit.
        ours: Headwater's figure.
        peer: The peer's, measured in the same run; None where the target is a figure by itself.
        limit: What the hardware or the protocol allows at best; None if nothing says so.
        ratio: How many times better than the peer, or ours as a part of the peer's; None without
            a peer.
        target: What the ratio must reach or not exceed; without a peer, what ours must.
        holds: Whether it does.
    """

    metric: str
    ours: float
    peer: float | None
    limit: float | None
    ratio: float | None
    target: float
    holds: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What a benchmark found.

    Attributes:
        benchmark: Its name.
        checked: Whether every run gave the right result; without it no figure counts.
        results: The figures.
    """

    benchmark: str
    checked: bool
    results: tuple[Measure, ...]


def faster(metric: str, *, ours: float, peer: float, limit: float | None, target: float) -> Measure:
    """Compares durations: the ratio is peer by ours, the target a minimum."""
    ratio = peer / ours
    return Measure(metric, ours, peer, limit, ratio, target, ratio >= target)


def smaller(
    metric: str, *, ours: float, peer: float, limit: float | None, target: float
) -> Measure:
    """Compares sizes: the ratio is ours by peer, the target a maximum."""
    ratio = ours / peer
    return Measure(metric, ours, peer, limit, ratio, target, ratio <= target)


def at_most(metric: str, *, ours: float, target: float) -> Measure:
    """Compares a figure with the most that it may be; there is no peer."""
    return Measure(metric, ours, None, None, None, target, ours <= target)


def at_least(metric: str, *, ours: float, target: float) -> Measure:
    """Compares a figure with the least that it has to be; there is no peer."""
    return Measure(metric, ours, None, None, None, target, ours >= target)


def within(metric: str, *, ours: float, peer: float, target: float) -> Measure:
    """Compares a figure with the most that it may be, and shows the peer's beside it."""
    return Measure(metric, ours, peer, None, ours / peer, target, ours <= target)


def rate(metric: str, *, ours: float, peer: float, limit: float | None, target: float) -> Measure:
    """Compares rates: the ratio is ours by peer, the target a minimum."""
    ratio = ours / peer
    return Measure(metric, ours, peer, limit, ratio, target, ratio >= target)


def grown(metric: str, *, before: float, after: float, target: float) -> Measure:
    """Compares a cost after growth with the one before: the target is a maximum of the ratio."""
    ratio = after / before
    return Measure(metric, after, before, None, ratio, target, ratio <= target)
