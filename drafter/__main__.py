"""`python -m drafter` is `crossdraft drafter`."""

import sys

from cli.main import main

if __name__ == "__main__":
    main(["drafter", *sys.argv[1:]])
