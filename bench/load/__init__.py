"""`python -m bench.load` and its relatives: many streams, overload, recovery, soak, fleet sizes."""
