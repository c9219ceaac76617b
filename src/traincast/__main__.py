"""``python -m traincast``."""

from traincast.cli.main import main

main()
