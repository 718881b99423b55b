"""Numbers of random streams: what is folded into a key, and for what.

Every stream has its number here alone. Changing one changes all results.
"""

# of a seed: what a run is made of
PARTITION = 0
TRAINING = 1
AGENTS = 2

# of a simulation's key
ENGINE = 0
COHORT = 1
DROPOUT = 2

# of a decentralized simulation's key
BATCHES = 0
ITERATIONS = 1

# of a client's key, beside those that its local steps split off
COMPRESSION = 1 << 20
# of the server's key
CLIENT_PRIVACY = (1 << 20) + 1
# of a batch's key; leaves of a gradient count on from here
HEAVY_TAILS = int.from_bytes(b"nois")
