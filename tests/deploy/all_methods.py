"""Compares deployed methods with simulated ones: python tests/deploy/all_methods.py

Prints the largest difference of the server's states after three rounds.
"""

from small_federation import deployed, largest_difference, simulated

from fedjax_muon.algorithms import ALL

if __name__ == "__main__":
    for name, method in ALL.items():
        ended, missing = deployed(method.function())
        apart = largest_difference(simulated(method.function()), ended)
        print(f"{name:30}{apart:10.3g}{len(missing):6} missing", flush=True)
