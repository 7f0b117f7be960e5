"""`python -m convtwins` is the command `convtwins`."""

from convtwins import main

main()
