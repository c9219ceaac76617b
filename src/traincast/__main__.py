"""``python -m traincast``."""

from traincast.cli.main import run

run()
