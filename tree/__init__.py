"""The search tree: events, replay, journal, strategies, trajectories, export."""
