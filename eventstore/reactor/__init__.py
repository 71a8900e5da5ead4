"""Reactors: effects on the outside, and commands, from the events of the log.

What is here says what is wanted and loads no driver; `eventstore.reactor.runner` runs it, and
`eventstore.reactor.async_runner` in an event loop. `eventstore.reactor.dry_run` lists the effects
of a part of the log and makes none. `eventstore.reactor.control` lists, pauses and retries.
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
