"""A ledger of exact values: what the program says today, to be compared with what it says after a change.

    python -m benchmarks.ledger compare --small         # what `make test` compares: half a minute
    python -m benchmarks.ledger compare                 # everything; exit code 1 if anything differs
    python -m benchmarks.ledger compare --part asks     # one part
    python -m benchmarks.ledger make --part asks        # write it anew, after a difference that is meant

Floats are written in hexadecimal, large values as digests. The files are in ``benchmarks/data/ledger``, one for each
part, with one line for each entry. :mod:`benchmarks.ledger.canonical` is the only module that knows the insides of the
program: whoever moves or renames something adapts it there, and the ledger must not change.
"""
