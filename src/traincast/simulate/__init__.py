"""What happens when: the executor, timelines, and plans written out for every rank."""

from traincast.simulate.expand import expand
from traincast.simulate.timeline import Spans, Timeline, interval, simulate

__all__ = ["Spans", "Timeline", "expand", "interval", "simulate"]
