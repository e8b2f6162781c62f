"""flashinfer-bench and SOL-ExecBench: a problem is a definition in JSON with its workloads, a solution JSON too.

`benchmark` has what the registry has of both. The reference.py of their tasks imports `reference` alone.
"""
