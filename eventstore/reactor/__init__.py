"""Reactors: external effects and commands that follow from the events of the log.

This package declares reactors and loads no driver. `eventstore.reactor.runner` runs them in a
thread, `eventstore.reactor.async_runner` in an event loop. `eventstore.reactor.dry_run` lists the
effects of a part of the log without performing them. `eventstore.reactor.control` lists, pauses
and resumes reactors.
"""

from __future__ import annotations

from eventstore.reactor.breaker import Breaker, BreakerPolicy, BreakerState
from eventstore.reactor.effect import Effect, Invoke
from eventstore.reactor.effect_rate import EffectRate
from eventstore.reactor.http_post import HttpPost
from eventstore.reactor.reactor import Reactor

__all__ = [
    "Breaker",
    "BreakerPolicy",
    "BreakerState",
    "Effect",
    "EffectRate",
    "HttpPost",
    "Invoke",
    "Reactor",
]
