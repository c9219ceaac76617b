"""``python -m benchmarks``: all speed studies."""

from benchmarks import commands, simulation

commands.main()
simulation.main()
