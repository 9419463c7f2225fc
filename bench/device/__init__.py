"""`python -m bench.device`: everything that only a GPU can tell, in one command."""
