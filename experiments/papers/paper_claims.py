"""The papers' claims, each with its table and its criterion."""

from experiments.papers.claims import (
    Claim,
    above,
    cheaper,
    falling,
    first,
    highest,
    least,
    train_loss,
    wider,
    within,
)

FASHION, CIFAR, CIFAR100 = "fashion_mnist, lenet", "cifar10_subset, lenet", "lenet"
MUON, LOCAL, AVERAGE = "FedMuon(alignment)", "Local Muon", "FedAvg"
CORRECT, PERSISTENT = "FedMuon(bias correction)", "LocalMuon(persistent)"
HARD = f"{CIFAR100}, Dirichlet(0.1)"
FOUR, SIXTEEN = (f"{CIFAR}, {steps} steps, i.i.d." for steps in (4, 16))
AUC = "sst2, {} steps, {}"
ABLATION = "FedMuon is worse {}"
UNNAMED = "a bar chart (ViT-Tiny) that does not name the matrices"
# the kept runs of FedMuon-DA are from before its vectors had unit length
JORDAN = " (Jordan's coefficients)"  # kept runs; the module has Theorem 3's
OLD_FORM = " (vectors not normalized)"
UNEQUAL = "not in the paper, which compares unequal noise"
CLAIMS = (
    Claim(
        "Liu et al.",
        "FedMuon beats Local Muon, and Local Muon FedAvg, under Dirichlet(0.1)",
        "73.05, 66.71, 60.25 (ResNet-18); 48.18, 40.53, 27.14 (ViT-Tiny)",
        "papers/fedmuon_004/table_2",
        falling(HARD, MUON, LOCAL, AVERAGE),
    ),
    Claim(
        "Liu et al.",
        "FedMuon beats Local Muon, and Local Muon FedAvg, under Dirichlet(0.6)",
        "74.12, 71.66, 64.08 (ResNet-18); 50.22, 46.69, 32.36 (ViT-Tiny)",
        "papers/fedmuon_004/table_2",
        falling(f"{CIFAR100}, Dirichlet(0.6)", MUON, LOCAL, AVERAGE),
    ),
    Claim(
        "Liu et al.",
        "FedMuon ranks first of seven methods under Dirichlet(0.1)",
        "73.05; next FedCM 66.73 (ResNet-18)",
        "papers/fedmuon_004/table_2",
        first(HARD, MUON),
    ),
    Claim(
        "Liu et al.",
        "FedMuon ranks first of seven methods under Dirichlet(0.6)",
        "74.12; next Local Muon 71.66 (ResNet-18)",
        "papers/fedmuon_004/table_2",
        first(f"{CIFAR100}, Dirichlet(0.6)", MUON),
    ),
    Claim(
        "Liu et al.",
        ABLATION.format("without averaged momenta"),
        "73.05 and 69.12 (ResNet-18)",
        "papers/fedmuon_004/table_5",
        falling(HARD, MUON, "FedMuon(alignment, own momentum)"),
    ),
    Claim(
        "Liu et al.",
        ABLATION.format("without alignment"),
        "73.05 and 68.05 (ResNet-18)",
        "papers/fedmuon_004/table_5",
        falling(HARD, MUON, "Local Muon(averaged momentum)"),
    ),
    Claim(
        "Liu et al.",
        ABLATION.format("with SGD in place of Muon"),
        "73.05 and 66.28 (ResNet-18)",
        "papers/fedmuon_004/table_5",
        falling(HARD, MUON, "Local SGD(averaged momentum, alignment)"),
    ),
    Claim(
        "Liu et al.",
        ABLATION.format("with AdamW in place of Muon"),
        "73.05 and 64.25 (ResNet-18)",
        "papers/fedmuon_004/table_5",
        falling(HARD, MUON, "Local AdamW(averaged momentum, alignment)"),
    ),
    Claim(
        "Liu et al.",
        "the best weight of alignment is 0.5",
        "68.05, 69.89, 73.01, 72.12, 67.56 at 0, 0.25, 0.5, 0.75, 0.9 (ResNet-18)",
        "papers/fedmuon_004/table_6",
        highest(HARD, f"{MUON}, align", 0.0, 0.25, 0.5, 0.75, 0.9, at=0.5),
    ),
    Claim(
        "Liu et al.",
        "the best momentum is 0.98",
        "68.22, 70.56, 71.23, 73.01, 72.66 at 0.8, 0.9, 0.95, 0.98, 0.99 (ResNet-18)",
        "papers/fedmuon_004/table_6",
        highest(HARD, f"{MUON}, momentum", 0.8, 0.9, 0.95, 0.98, 0.99, at=0.98),
    ),
    Claim(
        "Liu et al.",
        "momenta truncated by SVD cost at most one point (1.05 times FedAvg's upload)",
        "73.05 and 72.56 (ResNet-18)",
        "papers/fedmuon_004/table_7",
        within(HARD, "FedMuon(SVD)", MUON, 1.0),
    ),
    Claim(
        "Liu et al.",
        "averaged momenta double the upload; truncated by SVD they add 5 % to it",
        "2 and 1.05 times the upload without them",
        "papers/fedmuon_004/table_7",
        cheaper(
            HARD,
            {MUON: 2.0, "FedMuon(SVD)": 1.05},
            than="FedMuon(alignment, own momentum)",
        ),
    ),
    Claim(
        "Liu et al.",
        "matrices are better conditioned under Muon than under SGD and AdamW: weights",
        UNNAMED,
        "papers/fedmuon_004/figure_4",
        least("condition number of the weights", LOCAL, AVERAGE, "Local AdamW"),
    ),
    Claim(
        "Liu et al.",
        "matrices are better conditioned under Muon than under SGD and AdamW: updates",
        UNNAMED,
        "papers/fedmuon_004/figure_4",
        least("condition number of their updates", LOCAL, AVERAGE, "Local AdamW"),
    ),
    Claim(
        "Liu et al.",
        "Muon's state takes less memory than AdamW's",
        "a bar chart (ViT-Tiny)",
        "papers/fedmuon_004/figure_4",
        least("kB of a local optimizer's state", LOCAL, "Local AdamW"),
    ),
    Claim(
        "Takezawa et al.",
        "LocalMuon fails under Dirichlet(0.1), and FedMuon does not",
        "curves",
        "papers/fedmuon_001/figure_1",
        falling(f"{FASHION}, Dirichlet(0.1)", CORRECT, PERSISTENT),
    ),
    Claim(
        "Takezawa et al.",
        "FedMuon ranks first of six methods under Dirichlet(0.1)",
        "curves",
        "papers/fedmuon_001/figure_1",
        first(f"{FASHION}, Dirichlet(0.1)", CORRECT),
    ),
    Claim(
        "Takezawa et al.",
        "FedMuon ranks first of six methods under Dirichlet(10)",
        "curves",
        "papers/fedmuon_001/figure_1",
        first(f"{FASHION}, Dirichlet(10)", CORRECT),
    ),
    Claim(
        "Takezawa et al.",
        "one Newton-Schulz step is much better than none under Dirichlet(0.1)" + JORDAN,
        "curves",
        "papers/fedmuon_001/figure_2",
        falling(f"{FASHION}, Dirichlet(0.1)", "T = 1", "T = 0"),
    ),
    Claim(
        "Takezawa et al.",
        "two Newton-Schulz steps are best under Dirichlet(0.1)" + JORDAN,
        "curves",
        "papers/fedmuon_001/figure_2",
        first(f"{FASHION}, Dirichlet(0.1)", "T = 2"),
    ),
    Claim(
        "Takezawa et al.",
        "four Newton-Schulz steps are best under Dirichlet(10)" + JORDAN,
        "curves",
        "papers/fedmuon_001/figure_2",
        first(f"{FASHION}, Dirichlet(10)", "T = 4"),
    ),
    Claim(
        "Zhang and Gao, Muon",
        "FedMuon ranks first of twelve methods with 4 local steps",
        "curves",
        "papers/fedmuon_003/figure_1",
        first(FOUR, "FedMuon"),
    ),
    Claim(
        "Zhang and Gao, Muon",
        "FedMuon ranks first of twelve methods with 16 local steps",
        "curves",
        "papers/fedmuon_003/figure_5",
        first(SIXTEEN, "FedMuon"),
    ),
    Claim(
        "Zhang and Gao, Muon",
        "FedMuon has the lowest training loss of twelve with 4 local steps",
        "curves",
        "papers/fedmuon_003/figure_1",
        least(train_loss(FOUR), "FedMuon"),
    ),
    Claim(
        "Zhang and Gao, Muon",
        "FedMuon has the lowest training loss of twelve with 16 local steps",
        "curves",
        "papers/fedmuon_003/figure_5",
        least(train_loss(SIXTEEN), "FedMuon"),
    ),
    Claim(
        "Zhang and Gao, Muon",
        "FedMuon's lead over the next method grows from 4 to 16 local steps",
        "curves",
        "papers/fedmuon_003/figure_1 papers/fedmuon_003/figure_5",
        wider((FOUR, SIXTEEN), "FedMuon"),
    ),
    Claim(
        "Zhang and Gao, minimax",
        "FedMuon-DA ranks first with 4 local steps, one in ten positive" + OLD_FORM,
        "curves",
        "papers/minimax_000/figure_1",
        first(AUC.format(4, "one in ten positive"), "FedMuon-DA"),
    ),
    Claim(
        "Zhang and Gao, minimax",
        "FedMuon-DA ranks first with 16 local steps, one in ten positive" + OLD_FORM,
        "curves",
        "papers/minimax_000/figure_2",
        first(AUC.format(16, "one in ten positive"), "FedMuon-DA"),
    ),
    Claim(
        "Zhang and Gao, minimax",
        "FedMuon-DA ranks first with 4 local steps and unequal shares of positives"
        + OLD_FORM,
        "curves",
        "papers/minimax_000/figure_3",
        first(AUC.format(4, "unequal shares"), "FedMuon-DA"),
    ),
    Claim(
        "DPMixSGD",
        "above DP-SGDA at the paper's noise, unclipped: robust logistic regression on "
        "a8a",
        "80.9, 73.8 with 5 agents; 74.6, 73.0 with 20",
        "dpmixsgd/table_2_agents",
        above(
            ["a8a, agents 5", "a8a, agents 20"],
            "dpmixsgd_unclipped",
            "dp_sgda_unclipped",
        ),
    ),
    Claim(
        "DPMixSGD",
        "above DP-SGDA at the paper's noise, unclipped: an MLP on Fashion-MNIST",
        "93.1, 77.5 with 5 agents; 93.2, 55.1 with 20",
        "dpmixsgd/table_4",
        above(
            ["fashion_mnist, agents 5", "fashion_mnist, agents 20"],
            "dpmixsgd_unclipped",
            "dp_sgda_unclipped",
        ),
    ),
    Claim(
        "DPMixSGD",
        "at most a point below DM-HSGD, without noise: an MLP on Fashion-MNIST",
        "93.1 and 93.5 with 5 agents",
        "dpmixsgd/table_4",
        within("fashion_mnist, agents 5", "dpmixsgd_unclipped", "dm_hsgd", 1.0),
    ),
    Claim(
        "DPMixSGD",
        "above DP-SGDA at equal privacy, clipped: robust logistic regression on a9a",
        UNEQUAL,
        "dpmixsgd/equal",
        above(["a9a, epsilon 1", "a9a, epsilon 8"], "dpmixsgd", "dp_sgda"),
    ),
    Claim(
        "DPMixSGD",
        "above DP-SGDA at equal privacy, clipped: an MLP on Fashion-MNIST",
        UNEQUAL,
        "dpmixsgd/equal",
        above(
            ["fashion_mnist, epsilon 1", "fashion_mnist, epsilon 8"],
            "dpmixsgd",
            "dp_sgda",
        ),
    ),
)
