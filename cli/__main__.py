"""`python -m cli` is `crossdraft`."""

from cli.main import main

if __name__ == "__main__":
    main(prog_name="crossdraft")
