"""The house rules as data and small functions: what CONTRIBUTING.md asks for, checked on the source text.

A rule is a function that reads a Checkout and yields Findings; each finding names file, line and remedy. The tables
(which module may import what, which call belongs to which owner, which folders exist) are the first thing in each
module, so that a wanted change is one line there. `tests/test_house_rules.py` runs every rule on this checkout, and on
a sample that breaks it, so that no rule can pass by finding nothing.
"""
