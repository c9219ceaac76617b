"""The graph inspector: predicts how a run draws on its resources from the graph of its operators alone.

The network is that of Driple (Yang et al., "Prediction of the Resource Consumption of Distributed Deep Learning
Systems", SIGMETRICS 2022). The life of its data, in order: ``communities`` and ``grouping`` divide the operators into
groups, ``features`` describes the groups and the setting, ``evaluate`` evaluates the trained network without PyTorch,
``targets`` turns its outputs into uses of resources, ``bundle`` keeps it in a folder. ``traincast.fitting.inspector``
trains it.
"""
