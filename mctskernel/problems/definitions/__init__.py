"""Problems of flashinfer-bench and SOL-ExecBench: a definition in JSON with its workloads, a solution in JSON."""
