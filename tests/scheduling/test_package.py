"""What the package offers is there, and its example runs."""

from __future__ import annotations

import doctest

import traincast.scheduling


def test_the_example_of_the_package_runs() -> None:
    found = doctest.testmod(traincast.scheduling)
    assert found.attempted > 4
    assert found.failed == 0


def test_names_stand_once_and_are_there() -> None:
    names = traincast.scheduling.__all__
    assert len(set(names)) == len(names)
    assert all(getattr(traincast.scheduling, name).__doc__ for name in names)
