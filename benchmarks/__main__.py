"""``python -m benchmarks``: all speed studies."""

from benchmarks import commands, events, search, simulation

commands.main()
simulation.main()
events.main()
search.main([])
