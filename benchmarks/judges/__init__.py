"""Scripts that give exports to a framework's own configuration code, in an environment that has the framework.

``benchmarks.exporters`` runs each script with another Python than Traincast's, so a script imports nothing of
Traincast. It reads lines of JSON from standard input (made by :func:`benchmarks.exporters.case_of`) and writes one line
for each to the file that it is given: the empty string if the framework accepts the text, otherwise its error.
"""
