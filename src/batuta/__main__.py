"""`python -m batuta` is the command `batuta`."""

from batuta.cli import main

if __name__ == "__main__":
    main()
