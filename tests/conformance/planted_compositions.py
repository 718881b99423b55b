"""Small implementations of methods for functions of losses, and mistakes in them."""

import numpy as np

from tests.conformance.planted import add, mean, polar, zeros

every = slice(None)


def loss(task, i, x, rows=every):
    X, Y = (a[rows] for a in task.data[i])
    return np.mean((X @ x["w"].T + x["b"] - Y) ** 2)


def step(x, m, lr, wrong):
    size = 1 if wrong == "vectors along M" else np.linalg.norm(m["b"])
    w = m["w"] / np.linalg.norm(m["w"]) if wrong == "not orthogonalized" else m["w"]
    w = w if wrong == "not orthogonalized" else polar(w)
    return add(x, {"w": w, "b": m["b"] / (size or 1)}, -lr)


def scaled(g, s):
    return {k: s * v for k, v in g.items()}


def mixed(old, new, b):
    return add(scaled(old, 1 - b), new, b)


def fedcomuon(task, wrong=""):
    h, x, N = task.hyper, dict(task.x0), len(task.sizes)
    a, b = h["alpha"], h["beta"]
    a = 1 - a if wrong == "alpha reversed" else a
    b = 1 - b if wrong == "beta reversed" else b

    def slope(u):
        return {
            "no f'": 1,
            "f in place of f', of u^2": 2 * u,
            "u times t": np.exp(u * h["t"] / 8),
            "log": 1 / u,
            "slope at most 1": min(1, np.exp(u / h["t"])),
        }.get(wrong, np.exp(u / h["t"]))

    u = [loss(task, i, x) for i in range(N)]
    own = [scaled(task.grad(i, x), slope(u[i])) for i in range(N)]
    bar = zeros(x) if wrong == "M begins at zero" else mean(own)
    kept = {}
    for cohort in task.cohorts:
        xs, ms = [], []
        for i in cohort:
            y, m = dict(x), kept.get(i, bar) if wrong == "M not averaged" else bar
            if wrong == "u begun anew":
                u[i] = loss(task, i, x)
            j = (i + 1) % N if wrong == "u of the next client" else i
            for _ in range(task.steps):
                if wrong != "M first":
                    y = step(y, m, h["lr"], wrong)
                new = loss(task, i, y)
                new = new * 6 if wrong == "loss summed over outputs" else new
                before = u[j]
                u[j] = new if wrong == "f' of the batch" else a * new + (1 - a) * u[j]
                used = before if wrong == "f' of the old u" else u[j]
                m = mixed(m, scaled(task.grad(i, y), slope(used)), b)
                if wrong == "M first":
                    y = step(y, m, h["lr"], wrong)
            kept[i] = m
            xs.append(y), ms.append(m)
        x, bar = mean(xs), mean(ms)
        if wrong == "M weighed by slopes":
            bar = mean(ms, [slope(u[i]) for i in cohort])
        if wrong == "u averaged":
            u = [np.mean([u[i] for i in cohort])] * N
        yield x


def fedcomuon_vr(task, wrong=""):
    h, x, N = task.hyper, dict(task.x0), len(task.sizes)
    a, rho = h["alpha"], h["rho"]
    rho = 1 - rho if wrong == "rho reversed" else rho
    u, H, M, last, seen = [0.0] * N, [zeros(x)] * N, [zeros(x)] * N, [x] * N, {}

    def sample(i, y, rows, first):
        old = seen.get(i, rows) if wrong == "fresh samples" else rows
        seen[i] = rows
        new, g = loss(task, i, y, rows), task.grad(i, y, rows)
        new_, g_ = loss(task, i, last[i], old), task.grad(i, last[i], old)
        past = 0 if first else 1 - a
        u[i] = new + (0 if wrong == "u not recursive" else past) * (u[i] - new_)
        past = 0 if wrong == "H not recursive" else past
        H[i] = add(g, add(H[i], g_, -1), past)
        norm = np.sqrt(sum((v**2).sum() for v in H[i].values()))
        if wrong == "entries clipped":
            H[i] = {k: np.clip(v, -h["C_g"] / 9, h["C_g"] / 9) for k, v in H[i].items()}
        elif wrong != "no ball":
            H[i] = scaled(H[i], min(1, h["C_g"] / norm))
        v = np.exp(u[i] / h["t"])
        v = v if wrong == "no C_f" else min(v, h["C_f"])
        v = 1 if wrong == "no f'" else v
        fresh = scaled(H[i], v)
        M[i] = fresh if first else mixed(M[i], fresh, rho)
        last[i] = y

    for r, cohort in enumerate(task.cohorts):
        y = dict.fromkeys(cohort, x)
        for k in range(task.steps):
            for j, i in enumerate(cohort):
                anew = wrong == "begun anew every round"
                if wrong == "old point of the server":
                    last[i] = x
                sample(i, y[i], task.rows[r][j][k], k == 0 and (r == 0 or anew))
            meet = wrong == "M averaged with x"
            if k == (task.steps - 1 if meet else 0) and wrong != "M never averaged":
                bar = mean([M[i] for i in cohort])
                M = [bar] * N
            y = {i: step(y[i], M[i], h["lr"], wrong) for i in cohort}
        if wrong == "x_ after the step":
            last = [y[i] for i in range(N)]
        x = mean([y[i] for i in cohort])
        if wrong == "x_ is the mean":
            last = [x] * N
        if wrong == "u averaged":
            u = [np.mean(u)] * N
        yield x
