"""Deliberate faults, switched on one at a time: each must be caught by the tests. `make mutants` shows which test does.

`faults.py` lists them. A fault is a line of the package and what it becomes; the tests named beside it run against a
copy of the package in which it is so, and one of them must fail.
"""
