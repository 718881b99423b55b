"""Commands under fuzzing, kills, damage and hostile environments.

    python -m tests.robustness --minutes 60

prints a table of what was tried and what came of it; counts add up over calls in
runs/robustness.jsonl. `tests/robustness/test_robustness.py` runs a short form.
"""
