"""Scripts that hand exports to a framework's own configuration code, in an environment that has the framework.

Each is run by ``benchmarks.exporters`` with another Python than Traincast's, so it imports nothing of Traincast. It
reads lines of JSON from standard input (what :func:`benchmarks.exporters.case_of` makes) and writes one line for each
to the file that it is given: the empty string where the framework accepts the text, else its own words.
"""
