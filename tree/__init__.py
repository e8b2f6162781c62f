"""The search tree: nodes, selection, widening, backup, journal, trajectories, export."""
