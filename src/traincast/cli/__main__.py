"""``python -m traincast.cli``."""

from traincast.cli.main import run

run()
