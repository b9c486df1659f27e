"""Tests of the tests: faults that are put into a copy of the project, each of which a named test must find."""
