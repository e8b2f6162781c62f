"""What faults are injected into runs of the search, into which, and what has to hold of a run afterwards."""
