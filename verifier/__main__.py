"""`python -m verifier` is `crossdraft verifier`."""

import sys

from cli.main import main

if __name__ == "__main__":
    main(["verifier", *sys.argv[1:]])
