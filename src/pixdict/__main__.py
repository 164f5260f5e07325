"""`python -m pixdict`."""

from pixdict.cli import main

if __name__ == "__main__":
    main()
