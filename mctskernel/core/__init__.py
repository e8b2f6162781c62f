"""Plain frozen data that all parts share."""
