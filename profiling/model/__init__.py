"""A GPU on paper: what a launch asks of its parts, and how long that takes."""
