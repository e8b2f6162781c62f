"""Problems of other people's benchmarks, read where they lie in a folder of the user's.

A problem becomes a task folder, which is searched as any other, and the best kernel of a run becomes a solution in the
benchmark's own form. Each form has a package here; what they share is beside them.
"""
