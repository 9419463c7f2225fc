"""`python -m bench.device`: everything that only a GPU can show, in one command."""
