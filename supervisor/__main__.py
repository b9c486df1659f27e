"""`python -m supervisor`: the same as the command `kernel-supervisor`."""

from supervisor.cli import main

if __name__ == "__main__":
    main()
