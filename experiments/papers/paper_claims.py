"""The papers' claims, each with its table and its criterion.

No comparison of two methods in a setting belongs to two claims.
"""

from experiments.papers.claims import (
    Claim,
    above,
    at_edge,
    cheaper,
    costs,
    falling,
    first,
    highest,
    least,
    loses_more,
    train_loss,
    wider,
    within,
)

FASHION, CIFAR, CIFAR100 = "fashion_mnist, lenet", "cifar10_subset, lenet", "lenet"
MUON, LOCAL, AVERAGE = "FedMuon(alignment)", "Local Muon", "FedAvg"
CORRECT, PERSISTENT = "FedMuon(bias correction)", "Local Muon(persistent)"
HARD, MILD = (f"{CIFAR100}, Dirichlet({alpha})" for alpha in ("0.1", "0.6"))
EVEN, SKEWED = (f"{FASHION}, Dirichlet({alpha})" for alpha in ("10", "0.1"))
FOUR, SIXTEEN = (f"{CIFAR}, {steps} steps, i.i.d." for steps in (4, 16))
DIVIDED, UNLIKE = "Dirichlet(0.5)", "heterogeneous clients"
AUC = "sst2, {} steps, {}"
POSITIVE, SHARES = "one in ten positive", "unequal shares"
ABLATION = "FedMuon is worse {}"
OWN = "FedMuon(alignment, own momentum)"
BOTH = "(averaged momentum, alignment)"
AVERAGED_SGD, AVERAGED_ADAM = f"Local SGD{BOTH}", f"Local AdamW{BOTH}"
STEP = "ms per local step"
UNNAMED = "a bar chart (ViT-Tiny) that does not name the matrices"
UNCLIPPED = "dpmixsgd_unclipped", "dp_sgda_unclipped"
CLIPPED, EPSILONS = ("dpmixsgd", "dp_sgda"), ("epsilon 1", "epsilon 8")
MLP = "fashion_mnist"
UNEQUAL = "not in the paper, which compares unequal noise"
BATCHES = "both, at a batch of 256 and a clip norm of 3, the largest that were tried"
LARGEST = "both, at a clip norm of 3, the largest that was tried"
# effects of the smaller runs
SHORT = "LeNet, 1,000 local steps in place of 15,000"
RANKS = "LeNet's matrices are small: 5 % of their entries are the ranks 1, 1, 4, 2, 2"
MEMORY = f"{SHORT}: 0.98 averages over 50 of them"
ORTHOGONALIZED = (
    "LeNet's local steps take 5 ms on a CPU core, so orthogonalization is a larger "
    "share of them than for ViT-Tiny"
)
BRIEF = "200 rounds in place of 4,688"
BRIEFER = "150 rounds in place of 4,688"
EPOCHS = "LeNet, 8 epochs of 10,000 images"
SENTENCES = "sst2, rnn, {} steps, i.i.d."
SMALL_TEXT = "a network of 32 units, 6 epochs of a fifth of SST-2"
RARE = "512 local steps of a network of 32 units"


def ranks_of_twelve(
    steps: int, setting: str, figure: str, on: str = "", scale: str = EPOCHS
) -> tuple[Claim, ...]:
    """Returns FedMuon's claims in one figure of its theory's paper."""
    paper, table = "Zhang and Gao, Muon", f"papers/fedmuon_003/{figure}"
    score, loss = "FedMuon ranks first", "FedMuon has the lowest training loss"
    said = f"of twelve methods with {steps} local steps" + (on and f" on {on}")
    judges = first(setting, "FedMuon"), least(train_loss(setting), "FedMuon")
    claims = (f"{score} {said}", f"{loss} {said}")
    mark = f"{steps}-{on}" if on else f"{steps}"
    ids = (f"003/first-{mark}", f"003/loss-{mark}")
    return tuple(
        Claim(id, paper, claim, "curves", table, judge, scale)
        for id, claim, judge in zip(ids, claims, judges, strict=True)
    )


def ranks_of_minimax(steps: int, split: str, figure: str) -> tuple[Claim, ...]:
    """Returns the claims of both methods for minimax problems in one figure."""
    names = "Fed-NSGDA-M", "FedMuon-DA"
    said = f"is above the six other papers' methods, {steps} local steps, {split}"
    return tuple(
        Claim(
            f"000/{name}-{figure}",
            "Zhang and Gao, minimax",
            f"{name} {said}",
            "curves",
            f"papers/minimax_000/{figure}",
            first(AUC.format(steps, split), name, but=other),
            RARE,
        )
        for name, other in zip(names, names[::-1], strict=True)
    )


TWELVE = (
    *ranks_of_twelve(4, FOUR, "figure_1"),
    *ranks_of_twelve(4, f"{CIFAR}, 4 steps, {DIVIDED}", "figure_4", UNLIKE),
    *ranks_of_twelve(16, SIXTEEN, "figure_5"),
    *ranks_of_twelve(4, SENTENCES.format(4), "figure_10", "sentences", SMALL_TEXT),
    *ranks_of_twelve(16, SENTENCES.format(16), "figure_11", "sentences", SMALL_TEXT),
)
MINIMAX = (
    *ranks_of_minimax(4, POSITIVE, "figure_1"),
    *ranks_of_minimax(16, POSITIVE, "figure_2"),
    *ranks_of_minimax(4, SHARES, "figure_3"),
)
CLAIMS = (
    Claim(
        "004/local-muon-0.1",
        "Liu et al.",
        "Local Muon beats FedAvg under Dirichlet(0.1)",
        "66.71 and 60.25 (ResNet-18); 40.53 and 27.14 (ViT-Tiny)",
        "papers/fedmuon_004/table_2",
        falling(HARD, LOCAL, AVERAGE),
        SHORT,
    ),
    Claim(
        "004/first-0.1",
        "Liu et al.",
        "FedMuon ranks first of seven methods under Dirichlet(0.1)",
        "73.05; next FedCM 66.73 (ResNet-18)",
        "papers/fedmuon_004/table_2",
        first(HARD, MUON),
        SHORT,
    ),
    Claim(
        "004/local-muon-0.6",
        "Liu et al.",
        "Local Muon beats FedAvg under Dirichlet(0.6)",
        "71.66 and 64.08 (ResNet-18); 46.69 and 32.36 (ViT-Tiny)",
        "papers/fedmuon_004/table_2",
        falling(MILD, LOCAL, AVERAGE),
        SHORT,
    ),
    Claim(
        "004/first-0.6",
        "Liu et al.",
        "FedMuon ranks first of seven methods under Dirichlet(0.6)",
        "74.12; next Local Muon 71.66 (ResNet-18)",
        "papers/fedmuon_004/table_2",
        first(MILD, MUON),
        SHORT,
    ),
    Claim(
        "004/ablation-own-momentum",
        "Liu et al.",
        ABLATION.format("without averaged momenta"),
        "73.05 and 69.12 (ResNet-18)",
        "papers/fedmuon_004/table_5",
        falling(HARD, MUON, OWN),
        SHORT,
    ),
    Claim(
        "004/ablation-no-alignment",
        "Liu et al.",
        ABLATION.format("without alignment"),
        "73.05 and 68.05 (ResNet-18)",
        "papers/fedmuon_004/table_5",
        falling(HARD, MUON, "Local Muon(averaged momentum)"),
        SHORT,
    ),
    Claim(
        "004/ablation-sgd",
        "Liu et al.",
        ABLATION.format("with SGD in place of Muon"),
        "73.05 and 66.28 (ResNet-18)",
        "papers/fedmuon_004/table_5",
        falling(HARD, MUON, AVERAGED_SGD),
        SHORT,
    ),
    Claim(
        "004/ablation-adamw",
        "Liu et al.",
        ABLATION.format("with AdamW in place of Muon"),
        "73.05 and 64.25 (ResNet-18)",
        "papers/fedmuon_004/table_5",
        falling(HARD, MUON, AVERAGED_ADAM),
        SHORT,
    ),
    Claim(
        "004/improves-sgd",
        "Liu et al.",
        "averaged momenta and alignment improve Local SGD",
        "60.25 to 66.28 (ResNet-18)",
        "papers/fedmuon_004/table_2 papers/fedmuon_004/table_5",
        falling(HARD, AVERAGED_SGD, AVERAGE),
        SHORT,
    ),
    Claim(
        "004/improves-adamw",
        "Liu et al.",
        "averaged moments and alignment improve Local AdamW",
        "58.97 to 64.25 (ResNet-18)",
        "papers/fedmuon_004/table_2 papers/fedmuon_004/table_5",
        falling(HARD, AVERAGED_ADAM, "Local AdamW"),
        SHORT,
    ),
    Claim(
        "004/alignment",
        "Liu et al.",
        "the best weight of alignment is 0.5, among weights above 0",
        "69.89, 73.01, 72.12, 67.56 at 0.25, 0.5, 0.75, 0.9 (ResNet-18)",
        "papers/fedmuon_004/table_6",
        highest(HARD, f"{MUON}, align", 0.25, 0.5, 0.75, 0.9, at=0.5),
        SHORT,
    ),
    Claim(
        "004/momentum",
        "Liu et al.",
        "the best momentum is 0.98",
        "68.22, 70.56, 71.23, 73.01, 72.66 at 0.8, 0.9, 0.95, 0.98, 0.99 (ResNet-18)",
        "papers/fedmuon_004/table_6",
        highest(HARD, f"{MUON}, momentum", 0.8, 0.9, 0.95, 0.98, 0.99, at=0.98),
        MEMORY,
    ),
    Claim(
        "004/svd",
        "Liu et al.",
        "momenta truncated by SVD cost at most one point (1.05 times FedAvg's upload)",
        "73.05 and 72.56 (ResNet-18)",
        "papers/fedmuon_004/table_7",
        within(HARD, "FedMuon(SVD)", MUON, 1.0),
        RANKS,
    ),
    Claim(
        "004/upload",
        "Liu et al.",
        "averaged momenta double the upload; truncated by SVD they add 5 % to it",
        "2 and 1.05 times the upload without them",
        "papers/fedmuon_004/table_7",
        cheaper(HARD, {MUON: 2.0, "FedMuon(SVD)": 1.05}, OWN),
    ),
    Claim(
        "004/condition-weights",
        "Liu et al.",
        "matrices are better conditioned under Muon than under SGD and AdamW: weights",
        UNNAMED,
        "papers/fedmuon_004/figure_4",
        least("condition number of the weights", LOCAL, AVERAGE, "Local AdamW"),
        SHORT,
    ),
    Claim(
        "004/condition-updates",
        "Liu et al.",
        "matrices are better conditioned under Muon than under SGD and AdamW: updates",
        UNNAMED,
        "papers/fedmuon_004/figure_4",
        least("condition number of their updates", LOCAL, AVERAGE, "Local AdamW"),
        SHORT,
    ),
    Claim(
        "004/memory",
        "Liu et al.",
        "Muon's state takes less memory than AdamW's",
        "a bar chart (ViT-Tiny)",
        "papers/fedmuon_004/figure_4",
        least("kB of a local optimizer's state", LOCAL, "Local AdamW"),
    ),
    Claim(
        "004/time",
        "Liu et al.",
        "Muon takes about 5 % more time than AdamW (criterion: at most 10 %)",
        "about 5 % (section 4)",
        "papers/fedmuon_004/figure_4",
        costs(STEP, LOCAL, "Local AdamW", 0.1),
        ORTHOGONALIZED,
    ),
    Claim(
        "001/local-muon-fails",
        "Takezawa et al.",
        "heterogeneity costs Local Muon more accuracy than FedMuon",
        "curves; Local Muon fails under Dirichlet(0.1)",
        "papers/fedmuon_001/figure_1",
        loses_more((EVEN, SKEWED), PERSISTENT, CORRECT),
        BRIEF,
    ),
    Claim(
        "001/first-0.1",
        "Takezawa et al.",
        "FedMuon ranks first of six methods under Dirichlet(0.1)",
        "curves",
        "papers/fedmuon_001/figure_1",
        first(SKEWED, CORRECT),
        BRIEF,
    ),
    Claim(
        "001/first-10",
        "Takezawa et al.",
        "FedMuon ranks first of six methods under Dirichlet(10)",
        "curves",
        "papers/fedmuon_001/figure_1",
        first(EVEN, CORRECT),
        BRIEF,
    ),
    Claim(
        "001/one-step",
        "Takezawa et al.",
        "one Newton-Schulz step is much better than none under Dirichlet(0.1)",
        "curves",
        "papers/fedmuon_001/figure_2",
        falling(SKEWED, "T = 1", "T = 0"),
        BRIEFER,
    ),
    Claim(
        "001/two-steps",
        "Takezawa et al.",
        "two Newton-Schulz steps are best under Dirichlet(0.1)",
        "curves",
        "papers/fedmuon_001/figure_2",
        first(SKEWED, "T = 2"),
        BRIEFER,
    ),
    Claim(
        "001/four-steps",
        "Takezawa et al.",
        "four Newton-Schulz steps are best under Dirichlet(10)",
        "curves",
        "papers/fedmuon_001/figure_2",
        first(EVEN, "T = 4"),
        BRIEFER,
    ),
    *TWELVE,
    Claim(
        "003/lead",
        "Zhang and Gao, Muon",
        "FedMuon's lead over the next method grows from 4 to 16 local steps",
        "curves",
        "papers/fedmuon_003/figure_1 papers/fedmuon_003/figure_5",
        wider((FOUR, SIXTEEN), "FedMuon"),
        EPOCHS,
    ),
    *MINIMAX,
    Claim(
        "002/unclipped-a8a",
        "DPMixSGD",
        "above DP-SGDA at the paper's noise, unclipped: logistic regression, a8a",
        "80.9, 73.8 with 5 agents; 74.6, 73.0 with 20",
        "dpmixsgd/table_2_agents",
        above(["a8a, agents 5", "a8a, agents 20"], *UNCLIPPED),
    ),
    Claim(
        "002/unclipped-mlp",
        "DPMixSGD",
        "above DP-SGDA at the paper's noise, unclipped: an MLP on Fashion-MNIST",
        "93.1, 77.5 with 5 agents; 93.2, 55.1 with 20",
        "dpmixsgd/table_4",
        above([f"{MLP}, agents 5", f"{MLP}, agents 20"], *UNCLIPPED),
    ),
    Claim(
        "002/noise",
        "DPMixSGD",
        "at most a point below DM-HSGD, without noise: an MLP on Fashion-MNIST",
        "93.1 and 93.5 with 5 agents",
        "dpmixsgd/table_4",
        within("fashion_mnist, agents 5", "dpmixsgd_unclipped", "dm_hsgd", 1.0),
    ),
    Claim(
        "002/equal-a9a",
        "DPMixSGD",
        "above DP-SGDA at equal privacy, clipped: logistic regression, a9a",
        UNEQUAL,
        "dpmixsgd/equal",
        at_edge(above([f"a9a, {e}" for e in EPSILONS], *CLIPPED), BATCHES),
        in_paper=False,
    ),
    Claim(
        "002/equal-mlp",
        "DPMixSGD",
        "above DP-SGDA at equal privacy, clipped: an MLP on Fashion-MNIST",
        UNEQUAL,
        "dpmixsgd/equal",
        at_edge(above([f"{MLP}, {e}" for e in EPSILONS], *CLIPPED), LARGEST),
        in_paper=False,
    ),
)
