"""`python -m blackwell`."""

from blackwell.cli import main

if __name__ == "__main__":
    main()
