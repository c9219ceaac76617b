"""Simulation: when each task of a plan starts and ends, and plans with one row per rank."""

from traincast.simulate.conditions import under, who_waits
from traincast.simulate.expand import expand
from traincast.simulate.timeline import Evaluator, Spans, Timeline, busiest_s, interval, simulate

__all__ = [
    "Evaluator",
    "Spans",
    "Timeline",
    "busiest_s",
    "expand",
    "interval",
    "simulate",
    "under",
    "who_waits",
]
