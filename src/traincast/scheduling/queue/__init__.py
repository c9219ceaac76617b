"""The simulation of a queue: state, events, outcome and figures."""
