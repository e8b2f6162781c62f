"""Child processes: how they are started, spoken to and replaced; those that compile, and those that judge."""
