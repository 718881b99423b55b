"""Small implementations in NumPy, and mistakes in them that people make.

`wrong` is the name of a mistake; without one, they are right.
"""

import numpy as np


def add(a, b, s=1.0):
    return {k: a[k] + s * b[k] for k in a}


def mean(trees, w=None):
    return {k: np.average([t[k] for t in trees], axis=0, weights=w) for k in trees[0]}


def zeros(x):
    return {k: 0 * v for k, v in x.items()}


def sgd(task, i, x, wrong, pull=lambda y: 0, state=None, lr=None):
    """K steps of client i; the mistakes are those of local training."""
    y, m = dict(x), state or zeros(x)
    lr = task.hyper["lr"] if lr is None else lr
    steps = {"a step less": task.steps - 1, "a step more": task.steps + 1}
    for k in range(steps.get(wrong, task.steps)):
        g = task.grad(i, x if wrong == "all gradients at x" else y)
        if wrong == "decay left on":
            g = add(g, y, 0.01)
        if wrong == "gradients clipped to 1":
            norm = np.sqrt(sum((v**2).sum() for v in g.values()))
            g = {k: v / max(1, norm) for k, v in g.items()}
        if wrong == "loss halved":
            g = {k: v / 2 for k, v in g.items()}
        if wrong == "summed loss":
            g = {k: v * task.sizes[i] for k, v in g.items()}
        if wrong in ("momentum", "momentum kept"):
            m = add(g, m, 0.9)
            g = m
        if wrong == "Nesterov momentum":
            m = add(g, m, 0.9)
            g = add(g, m, 0.9)
        if wrong == "bias not trained":
            g["b"] = 0 * g["b"]
        if wrong == "gradients normalized":
            norm = np.sqrt(sum((v**2).sum() for v in g.values()))
            g = {k: v / norm for k, v in g.items()}
        rate = lr / (k + 1) if wrong == "rate decays in the round" else lr
        p = pull(y)
        y = {j: y[j] - rate * (g[j] + (p[j] if p else 0)) for j in y}
    return y, m


def fedavg(task, wrong=""):
    x, kept, first, step = dict(task.x0), {}, None, zeros(task.x0)
    for r, cohort in enumerate(task.cohorts):
        lr = task.hyper["lr"]
        lr = {"lr squared": lr**2, "rate decays over rounds": lr / (r + 1)}.get(
            wrong, lr
        )
        ends, start = [], x
        cohort = cohort[:-1] if wrong == "the last client is lost" else cohort
        for i in cohort:
            state = kept.get(i) if wrong == "momentum kept" else None
            if wrong == "clients go on from their own":
                start = kept.get(i, x)
            y, m = sgd(task, i, start, wrong, state=state, lr=lr)
            kept[i] = y if wrong == "clients go on from their own" else m
            if wrong == "model shared by clients":
                start = y
            if wrong == "uploads in float16":
                y = {k: v.astype(np.float16).astype(float) for k, v in y.items()}
            ends.append(y)
        n = np.array([task.sizes[i] for i in cohort], float)
        first = n if first is None else first
        n = {
            "uniform": np.ones(len(n)),
            "square roots": n**0.5,
            "weights of round 1": first,
            "weights inverted": 1 / n,
            "weighted twice": n**2,
        }.get(wrong, n)
        new = mean(ends, n)
        if wrong == "divides by all":
            new = add(x, add(new, x, -1), n.sum() / sum(task.sizes))
        if wrong == "the server counts as a client":
            new = add(x, add(new, x, -1), 0.75)
        if wrong == "sum of changes":
            new = add(x, add(new, x, -1), len(cohort))
        if wrong == "mean with the old model":
            new = mean([new, x])
        if wrong == "momentum of the server":
            step = add(add(new, x, -1), step, 0.9)
            new = add(x, step)
        if wrong == "the median of clients":
            new = {k: np.median([e[k] for e in ends], axis=0) for k in x}
        if wrong == "bias not averaged":
            new["b"] = ends[0]["b"]
        x = new
        yield x


def fedprox(task, wrong=""):
    x, mu = dict(task.x0), task.hyper["mu"]
    for cohort in task.cohorts:
        size = {"mu doubled": 2, "mu halved": 0.5, "pull away": -1}.get(wrong, 1)
        at = task.x0 if wrong == "pull to the first model" else x
        at = zeros(x) if wrong == "pull to zero" else at
        pull = lambda y, at=at, s=size: {
            k: s * mu * v for k, v in add(y, at, -1).items()
        }
        ends = [sgd(task, i, x, wrong, pull)[0] for i in cohort]
        x = mean(ends)
        yield x


def scaffold(task, wrong=""):
    lr, eta, N = task.hyper["lr"], task.hyper["server_lr"], len(task.sizes)
    x, c = dict(task.x0), zeros(task.x0)
    own, seen = [zeros(x) for _ in range(N)], set()
    for cohort in task.cohorts:
        ends, changes = [], []
        for i in cohort:
            if wrong == "variates begin at c" and i not in seen:
                own[i] = c
            seen.add(i)
            move = add(c, own[i], -1)
            if wrong == "sign of the correction":
                move = add(own[i], c, -1)
            if wrong == "own variate not subtracted":
                move = c
            y, _ = sgd(task, i, x, wrong, lambda _, m=move: m)
            K = 1 if wrong == "K is the number of epochs" else task.steps
            by = K * lr * (eta if wrong == "server rate in the divisor" else 1)
            fresh = add(add(own[i], c, -1), add(x, y, -1), 1 / by)
            if wrong == "option I":
                fresh = task.grad(i, x)
            if wrong == "c not subtracted":
                fresh = add(own[i], add(x, y, -1), 1 / by)
            ends.append(add(y, x, -1))
            changes.append(add(fresh, own[i], -1))
            own[i] = fresh
            if wrong == "one variate for all":
                own = [fresh] * N
        S = len(cohort)
        share = {"c over the cohort": 1, "c by the sum": S}.get(wrong, S / N)
        share = eta * S / N if wrong == "server rate on c too" else share
        c = add(c, mean(changes), share)
        if wrong == "c over clients so far":
            c = mean([own[i] for i in seen])
        rate = {"server rate forgotten": 1, "server rate twice": eta**2}.get(wrong, eta)
        rate = eta * S / N if wrong == "x over all clients" else rate
        x = add(x, mean(ends), rate)
        yield x


def fedadam(task, wrong=""):
    h, x = task.hyper, dict(task.x0)
    b1, b2, tau, eta = h["b1"], h["b2"], h["tau"], h["server_lr"]
    if wrong == "b1 and b2 swapped":
        b1, b2 = b2, b1
    m, v = zeros(x), {k: 0 * u + tau**2 for k, u in x.items()}
    if wrong == "v begins at zero":
        v = zeros(x)
    for t, cohort in enumerate(task.cohorts, 1):
        d = mean([add(sgd(task, i, x, wrong)[0], x, -1) for i in cohort])
        if wrong == "rate used twice":
            d = {k: eta * u for k, u in d.items()}
        old = v
        m = {
            k: b1 * m[k] + (1 if wrong == "m without 1 - b1" else 1 - b1) * d[k]
            for k in x
        }
        if wrong == "m begun anew":
            m = {k: (1 - b1) * u for k, u in d.items()}
        of = m if wrong == "v of the momentum" else d
        v = {k: b2 * v[k] + (1 - b2) * of[k] ** 2 for k in x}
        used = old if wrong == "v of the round before" else v
        mm, vv = m, used
        if wrong == "bias corrected":
            mm = {k: u / (1 - b1**t) for k, u in m.items()}
            vv = {k: u / (1 - b2**t) for k, u in used.items()}
        ahead = 1 if wrong.endswith("a step ahead") else 0
        if wrong.startswith("corrected rate"):
            size = np.sqrt(1 - b2 ** (t + ahead)) / (1 - b1 ** (t + ahead))
            mm = {k: size * u for k, u in m.items()}
        root = {k: np.sqrt(u) + tau for k, u in vv.items()}
        if wrong == "tau inside of the root":
            root = {k: np.sqrt(u + tau) for k, u in vv.items()}
        if wrong == "no root":
            root = {k: u + tau for k, u in vv.items()}
        x = {k: x[k] + eta * mm[k] / root[k] for k in x}
        yield x


def polar(m):
    if not m.any():
        return m
    u, _, vt = np.linalg.svd(m, full_matrices=False)
    return u @ vt


def fedmuon(task, wrong=""):
    lr, b, x = task.hyper["lr"], task.hyper["b"], dict(task.x0)
    b = 1 - b if wrong == "b reversed" else b
    start = [task.grad(i, x) for i in range(len(task.sizes))]
    start = [zeros(x)] * len(start) if wrong == "M begins at zero" else start
    bar = None
    for cohort in task.cohorts:
        xs, ms = [], []
        for i in cohort:
            m = start[i] if bar is None or wrong == "M not averaged" else bar
            m = zeros(x) if wrong == "M reset" else m
            y = dict(x)
            for _ in range(task.steps):
                before = task.grad(i, y)
                if wrong == "M first":
                    m = {k: (1 - b) * m[k] + b * before[k] for k in m}
                of_w = polar(m["w"])
                if wrong == "Frobenius instead of polar":
                    of_w = m["w"] / np.linalg.norm(m["w"])
                if wrong == "sign instead of polar":
                    of_w = np.sign(m["w"])
                of_w = 2 * of_w if wrong == "step doubled" else of_w
                if wrong == "steps of the size of the gradient":
                    of_w = np.linalg.norm(before["w"]) * of_w
                y = {"w": y["w"] - lr * of_w, "b": y["b"] - lr * m["b"]}
                g = before if wrong == "gradient before the step" else task.grad(i, y)
                if wrong != "M first":
                    m = {k: (1 - b) * m[k] + b * g[k] for k in m}
            start[i] = m
            xs.append(y), ms.append(m)
        n = [task.sizes[i] for i in cohort] if wrong == "by examples" else None
        x, bar = mean(xs, n), mean(ms, n)
        if wrong == "M weighed by examples":
            bar = mean(ms, [task.sizes[i] for i in cohort])
        if wrong == "M of one client":
            bar = ms[0]
        if wrong == "x orthogonalized by the server":
            bar["w"] = polar(bar["w"])
        yield x


def muon(task, wrong=""):
    h, x = task.hyper, dict(task.x0)
    b = {"momentum 0.95": 0.95}.get(wrong, h["momentum"])
    M = zeros(x)
    for t, g in enumerate(task.gradients, 1):
        new = {}
        for k, v in x.items():
            if wrong == "coupled decay":
                g = {**g, k: g[k] + h["weight_decay"] * v}
            M[k] = b * M[k] + (1 - b) * g[k]
            u = (1 - b) * g[k] + b * M[k]
            if wrong == "gradient orthogonalized first":
                M[k] = M[k] + (1 - b) * (polar(g[k]) - g[k])
                u = M[k]
            u = {"no Nesterov": M[k], "Nesterov adds g": g[k] + b * M[k]}.get(wrong, u)
            if wrong == "Nesterov with the old momentum":
                u = (1 - b) * g[k] + b * (M[k] - (1 - b) * g[k]) / b
            if wrong == "momentum dampened by t":
                u = M[k] / (1 - b**t) + 0 * u
            wide = u.T if u.shape[0] > u.shape[1] else u
            size = np.linalg.norm(wide)
            size = np.linalg.norm(wide, 2) if wrong == "spectral norm" else size
            size = 2 * size if wrong == "half the norm" else size
            X = wide / (size + 1e-7)
            for _ in range(
                {"six steps": 6, "four steps": 4, "two steps": 2}.get(wrong, 5)
            ):
                A = X @ X.T
                c = 2.0315 if wrong != "a wrong coefficient" else 2.315
                X = 3.4445 * X + (-4.7750 * A + c * A @ A) @ X
            X = X.T if u.shape[0] > u.shape[1] else X
            rows, cols = v.shape
            scale = {
                "no scale": 1,
                "scale transposed": max(1, cols / rows) ** 0.5,
                "scale of Moonlight": 0.2 * max(v.shape) ** 0.5,
                "scale without 0.2": max(v.shape) ** 0.5,
                "scale without a root": max(1, rows / cols),
                "scale of both": (max(v.shape) / min(v.shape)) ** 0.5,
                "rows for columns": max(1, rows / cols) ** 0.5 * (cols / rows) ** 0.5,
                "rate times ten": 10 * max(1, rows / cols) ** 0.5,
            }.get(wrong, max(1, rows / cols) ** 0.5)
            decay = h["lr"] * h["weight_decay"]
            decay = h["weight_decay"] if wrong == "decay without lr" else decay
            decay = decay * scale if wrong == "decay times scale" else decay
            decay = 0 if wrong in ("coupled decay", "no decay") else decay
            if wrong == "cautious, scaled":
                decay = decay * scale * (X * v > 0)
            new[k] = v - decay * v - h["lr"] * scale * X
            if wrong == "decay after the step":
                new[k] = (v - h["lr"] * scale * X) * (1 - decay)
        x = new
        yield x


def second_moments(task, wrong, adaptive):
    """NorMuon, and AdaMuon, which is adaptive for every entry."""
    h, x = task.hyper, dict(task.x0)
    b, b2 = h["momentum"], h.get("b2", h["momentum"])
    b2 = {"b2 reversed": 1 - b2, "b2 = 0": 0}.get(wrong, b2)
    M, v = zeros(x), dict.fromkeys(x, 0)
    norm, new = np.linalg.norm, {}
    for t, g in enumerate(task.gradients):
        for k in x:
            M[k] = b * M[k] + (1 - b) * g[k]
            n = M[k] if wrong == "no Nesterov" else (1 - b) * g[k] + b * M[k]
            O = polar(np.sign(n) if adaptive and wrong != "no signs" else n)
            seen = {"v of the gradient": g[k], "v of the momentum": n}.get(wrong, O)
            axis = None if adaptive != (wrong == "the other's v") else 1
            axis = 0 if wrong == "v of columns" else axis
            square = seen**2 if axis is None else (seen**2).mean(axis, keepdims=True)
            square = np.mean(seen**2) if wrong == "one v for all" else square
            start = square if t == 0 and wrong == "v begun at the first" else v[k]
            v[k] = b2 * start + (1 - b2) * square
            hat = O / (v[k] if wrong == "no root" else np.sqrt(v[k]) + 1e-10)
            hat = np.sign(hat) * abs(hat) ** 0.5 if wrong == "fourth root" else hat
            rows, cols = n.shape
            want = 0.2 * (rows * cols) ** 0.5
            if not adaptive:
                want = max(1, rows / cols) ** 0.5 * norm(O)
            want = {"norm not restored": norm(hat), "norm 1": 1}.get(wrong, want)
            new[k] = x[k] - h["lr"] * want * hat / norm(hat)
        x = dict(new)
        yield x


def normuon(task, wrong=""):
    return second_moments(task, wrong, adaptive=False)


def adamuon(task, wrong=""):
    return second_moments(task, wrong, adaptive=True)


def stacked(task):
    return np.stack(
        [np.concatenate([v.ravel() for v in m.values()]) for m in task.messages]
    )


def message(task, row):
    return {"w": row[:12].reshape(3, 4), "b": row[12:]}


def krum(task, wrong=""):
    V, f = stacked(task), int(task.hyper["f"])
    n = len(V)
    W = V[:, :12] if wrong == "distances of w alone" else V
    D = ((W[:, None] - W[None]) ** 2).sum(2)
    D = np.sqrt(D) if wrong in ("distances not squared", "all, not squared") else D
    if wrong == "norms of arrays":
        parts = V[:, :12], V[:, 12:]
        D = sum(np.linalg.norm(p[:, None] - p, axis=2) for p in parts)
    if wrong == "cosine distances":
        size = np.linalg.norm(V, axis=1)
        D = 1 - V @ V.T / size[:, None] / size
    many = {"n - f - 1": n - f - 1, "all neighbors": n - 1, "all, not squared": n - 1}
    many = many.get(wrong, n - f - 2)
    scores = np.sort(D, axis=1)[:, 1 : 1 + many].sum(1)
    best = np.argmax(scores) if wrong == "the farthest" else np.argmin(scores)
    return message(task, V[best])


def trimmed_mean(task, wrong=""):
    V, f = stacked(task), int(task.hyper["f"])
    order = np.sort(V, axis=0)
    if wrong == "f in total":
        f = f // 2
    if wrong == "only the largest":
        return message(task, order[: len(V) - f].mean(0))
    if wrong == "whole messages by norm":
        V = V[np.argsort(np.linalg.norm(V, axis=1))]
        return message(task, V[f : len(V) - f].mean(0))
    if wrong == "median of the rest":
        return message(task, np.median(order[f : len(V) - f], axis=0))
    if wrong == "divides by n":
        return message(task, order[f : len(V) - f].sum(0) / len(V))
    return message(task, order[f : len(V) - f].mean(0))


def centered_clipping(task, wrong=""):
    V, tau = stacked(task), task.hyper["tau"]
    v = V.mean(0) if wrong == "from the mean" else np.zeros(V.shape[1])
    for _ in range(1 if wrong == "one iteration" else int(task.hyper["rounds"])):
        d = V - v
        norm = np.linalg.norm(d, axis=1, keepdims=True)
        factor = np.minimum(1, tau / norm)
        factor = tau / norm if wrong == "always scaled" else factor
        factor = np.minimum(1, tau**2 / norm) if wrong == "tau squared" else factor
        v = v + (d * factor).mean(0)
    return message(task, v)


def fedex_lora(task, wrong=""):
    n = np.array(task.weights, float)
    n = np.ones(len(n)) if wrong == "uniform" else n
    n = n**2 if wrong == "weighted twice" else n
    average = lambda rows: np.average(rows, axis=0, weights=n)
    A, B = (average([m[k] for m in task.messages]) for k in "AB")
    product = average([m["B"] @ m["A"] for m in task.messages])
    s = task.hyper["alpha"] / task.hyper["rank"]
    s = {"residual without its scale": 1.0, "residual halved": s / 2}.get(wrong, s)
    residual = product - B @ A
    residual = 0 * residual if wrong == "no residual" else residual
    residual = product if wrong == "product not centered" else residual
    return {"w": task.w + s * residual, "BA": B @ A}
