"""reports/strategies, which-strategy.md, tensor-parallel.md: ways of parallelism compared."""
