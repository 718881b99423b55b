"""Privacy accounting: how much a private run gives away about one example or client.

Numbers only, no gradients: `sensitivity` (what one record can change), `sampling` (when
it takes part), `accounting` (epsilon of a noise level and back), `report` (all of it in
one statement), `clients` (what a federated run releases), `paper` (the noise that
published theorems ask for). Epsilons need the extra `privacy`, dp-accounting.
"""
