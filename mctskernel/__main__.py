"""`python -m mctskernel`: the command line."""

from mctskernel.cli import main

main(prog_name="mctskernel")
