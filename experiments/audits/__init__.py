"""Audits of prepared private simulations: of what they claim, and of what they assume.

`worlds` runs a prepared simulation many times, with and without a canary, one of the
`records` that are made for this. `agents` and `clients` say what is seen of the worlds,
and `findings` tests the claim.
"""
