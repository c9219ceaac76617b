"""``python -m benchmarks``: all speed studies."""

from benchmarks import commands, events, simulation

commands.main()
simulation.main()
events.main()
