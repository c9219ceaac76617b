"""Policies by name."""

from __future__ import annotations

from typing import Final

from traincast.imports import make_by_name
from traincast.scheduling.policies.attained import Gittins, Las, Tiresias
from traincast.scheduling.policies.backfill import Conservative, Easy
from traincast.scheduling.policies.elastic import Elastic
from traincast.scheduling.policies.leased import Gandiva, Gavel, MaxMin, Themis
from traincast.scheduling.policies.ordered import FailureAware, Fifo, FifoFit, Priority, Qssf, Sjf, SjfFit
from traincast.scheduling.policies.ranked import Edf, Srsf, Srtf
from traincast.scheduling.policy import Policy

POLICIES: Final[dict[str, type[Policy]]] = {
    "fifo": Fifo,
    "fifo-fit": FifoFit,
    "sjf": Sjf,
    "sjf-fit": SjfFit,
    "srtf": Srtf,
    "srsf": Srsf,
    "priority": Priority,
    "easy": Easy,
    "conservative": Conservative,
    "las": Las,
    "tiresias": Tiresias,
    "gittins": Gittins,
    "gandiva": Gandiva,
    "max-min": MaxMin,
    "themis": Themis,
    "gavel": Gavel,
    "elastic": Elastic,
    "edf": Edf,
    "qssf": Qssf,
    "failure-aware": FailureAware,
}


def load_policy(name: str) -> Policy:
    """Return the policy of that name with its default settings, or ``package.module:Class``, made without arguments."""
    return make_by_name("policy", name, POLICIES, Policy)


__all__ = ["POLICIES", "load_policy"]
