"""Numbers of random streams, which are folded into keys that several modules have.

A key that one module alone has is split there. Changing a number changes all results.
"""

# of the seed of a run
PARTITION = 0
TRAINING = 1
AGENTS = 2
CLOCK = 3

# of a simulation's key
ENGINE = 0
COHORT = 1
DROPOUT = 2
ARRIVALS = 3
PROLOGUE = 4

# of a decentralized simulation's key
BATCHES = 0
ITERATIONS = 1

# of a client's key, besides the keys of its local steps
COMPRESSION = 1 << 20
ADAPTERS = (1 << 20) + 4
# of the key of a client's batches
WORK = (1 << 20) + 2
# of the server's key
CLIENT_PRIVACY = (1 << 20) + 1
STACK = (1 << 20) + 3
VOTE = (1 << 20) + 5
# of a batch's key; the number of a gradient's leaf is added
HEAVY_TAILS = int.from_bytes(b"nois")
