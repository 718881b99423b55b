"""Small implementations with two players, or without a server, and mistakes in them."""

import numpy as np

from tests.conformance.planted import add, mean, polar, sgd, zeros

X, Y = ("w", "b"), ("v", "c")
pick = lambda x, names: {k: x[k] for k in names}
length = lambda x: np.sqrt(sum((v**2).sum() for v in x.values()))


def rates(h, wrong=""):
    """What a gradient is multiplied by."""
    x, y = h["lr_x"], h["lr_y"]
    x, y = (y, x) if wrong == "rates swapped" else (x, y)
    y = {"y descends": -y, "one rate": x}.get(wrong, y)
    return dict.fromkeys(X, -x) | dict.fromkeys(Y, y)


def moved(z, rate, d):
    return {k: z[k] + rate[k] * d[k] for k in z}


# ------------------------------------------------------------------------- two players
def local_sgda(task, wrong=""):
    z, rate, kept = dict(task.x0), rates(task.hyper, wrong), {}
    for cohort in task.cohorts:
        ends = []
        for i in cohort:
            y = {**z, **kept.get(i, {})}
            for _ in range(task.steps - (wrong == "a step less")):
                g = task.grad(i, y)
                if wrong == "gradient of y at the server's model":
                    g |= pick(task.grad(i, z), Y)
                if wrong == "extragradient":
                    g = task.grad(i, moved(y, rate, g))
                if wrong == "x first":
                    g |= pick(task.grad(i, y | pick(moved(y, rate, g), X)), Y)
                if wrong == "y first":
                    g |= pick(task.grad(i, y | pick(moved(y, rate, g), Y)), X)
                y = moved(y, rate, g)
            if wrong == "y stays with clients":
                kept[i] = pick(y, Y)
            ends.append(y)
        sizes = [task.sizes[i] for i in cohort]
        new = mean(ends, sizes if wrong == "by examples" else None)
        if wrong == "y over all clients":
            share = len(cohort) / len(task.sizes)
            new |= pick(add(z, add(new, z, -1), share), Y)
        z = new
        yield z


def guided(task, wrong, direction):
    h, z, N = task.hyper, dict(task.x0), len(task.sizes)
    rate, u, g, own = rates(h, wrong), zeros(z), zeros(z), [zeros(z)] * N
    by = lambda x, y: dict.fromkeys(X, x) | dict.fromkeys(Y, y)
    server = by(h["server_lr_x"], h["server_lr_y"])
    server = by(h["server_lr_x"], 1) if wrong == "server's rate on x alone" else server
    for r, cohort in enumerate(task.cohorts):
        b = by(h["b_x"], h["b_x"] if wrong == "y with x's b" else h["b_y"])
        b = {k: 1 - v for k, v in b.items()} if wrong == "b reversed" else b
        b = by(1, 1) if r == 0 and wrong != "b in round 1 too" else b
        mix = lambda new, old, b=b: {k: b[k] * new[k] + (1 - b[k]) * old[k] for k in b}
        fresh, ends = list(own), []
        for i in cohort:
            y, seen, m = z, [], u
            for _ in range(task.steps):
                seen.append(task.grad(i, y))
                right = add(add(seen[-1], g), own[i], -1)
                d = {
                    "no correction": seen[-1],
                    "own control not subtracted": add(seen[-1], g),
                    "sign of the correction": add(add(seen[-1], g, -1), own[i]),
                }.get(wrong, right)
                if wrong == "orthogonalized before the momentum":
                    d = mix(direction(d), m)
                else:
                    d = mix(d, m)
                    m = d if wrong == "momentum of the steps" else m
                    d = d if wrong == "not normalized" else direction(d)
                y = moved(y, rate, d)
            ends.append(y)
            kinds = {"control of the last step": seen[-1], "at x": seen[0]}
            fresh[i] = kinds.get(wrong, mean(seen))
        news = mean([add(fresh[i], own[i], -1) for i in cohort])
        g, own = add(g, news), fresh
        u = mix(g, u)
        z = moved(z, server, add(mean(ends), z, -1))
        yield z


def fed_nsgda_m(task, wrong=""):
    def direction(d):
        if wrong == "norms of arrays":
            return {k: v / np.linalg.norm(v) for k, v in d.items()}
        sizes = [length(d)] * 2 if wrong == "one norm" else [length(pick(d, X)), 0]
        sizes[1] = sizes[1] or length(pick(d, Y))
        return {k: v / sizes[k in Y] for k, v in d.items()}

    return guided(task, wrong, direction)


def fedmuon_da(task, wrong=""):
    def direction(d):
        unit = lambda v: v / np.linalg.norm(v)
        right = {k: polar(v) if v.ndim > 1 else unit(v) for k, v in d.items()}
        if wrong == "vectors along u":
            return right | pick(d, ("b", "c"))
        if wrong == "norms of arrays":
            return {k: unit(v) for k, v in d.items()}
        return right

    return guided(task, wrong, direction)


# -------------------------------------------------------------------- without a server
def network(task, wrong):
    W = np.array(task.mixing)
    if wrong == "W without itself":
        W = W - np.diag(np.diag(W))
        W = W / W.sum(1, keepdims=True)
    kinds = {"W transposed": W.T, "no mixing": np.eye(len(W)), "W twice": W @ W}
    kinds |= {"neighbors alike": (W > 0) / (W > 0).sum(1, keepdims=True)}
    W = kinds.get(wrong, W)
    return lambda trees: [
        {k: np.tensordot(row, [t[k] for t in trees], 1) for k in trees[0]} for row in W
    ]


stacked = lambda trees: {k: np.stack([t[k] for t in trees]) for k in trees[0]}


def dsgd(task, wrong=""):
    mix, m, lr = network(task, wrong), len(task.sizes), task.hyper["lr"]
    x = [dict(task.x0)] * m
    for t in range(task.iterations):
        half = [add(x[i], task.grad(i, x[i]), -lr) for i in range(m)]
        new = mix(half)
        if wrong == "step not mixed":
            new = [add(y, task.grad(i, x[i]), -lr) for i, y in enumerate(mix(x))]
        if wrong == "neighbors' old models":
            own = task.mixing.diagonal()
            new = [add(y, add(half[i], x[i], -1), own[i]) for i, y in enumerate(mix(x))]
        if wrong == "one after another":
            new = list(half)
            for i in range(m):
                new[i] = mix(new)[i]
        if wrong == "mixing in every second iteration" and t % 2:
            new = half
        x = new
        yield stacked(x)


def tracking(task, wrong, estimate, direction, names=None):
    """Gradient tracking of estimates."""
    mix, m = network(task, wrong), len(task.sizes)
    rate = names or dict.fromkeys(task.x0, -task.hyper.get("lr", 0))
    x, v = [dict(task.x0)] * m, [zeros(task.x0)] * m
    old = list(v)
    for t in range(task.iterations):
        g = estimate(t, x)
        if wrong == "tracker begun at the gradient" and t == 0:
            v = old = g
        change = [add(g[i], old[i], -1) for i in range(m)]
        change = g if wrong == "old gradient not subtracted" else change
        new = mix([add(v[i], change[i]) for i in range(m)])
        if wrong == "tracker not mixed":
            new = [add(v[i], change[i]) for i in range(m)]
        if wrong in ("change not mixed", "DIGing"):
            new = [add(a, b) for a, b in zip(mix(v), change, strict=True)]
        new = {"no tracking": g, "gradients mixed": mix(g)}.get(wrong, new)
        along = v if wrong == "steps along the old tracker" else new
        half = [moved(x[i], rate, direction(along[i])) for i in range(m)]
        before, x, v, old = x, mix(half), new, g
        if wrong == "x not mixed":
            x = half
        if wrong in ("step not mixed", "DIGing"):
            x = [
                add(a, add(h, b, -1))
                for a, h, b in zip(mix(before), half, before, strict=True)
            ]
        yield stacked(x)


def gradient_tracking(task, wrong=""):
    every = range(len(task.sizes))
    estimate = lambda t, x: [task.grad(i, x[i]) for i in every]
    return tracking(task, wrong, estimate, lambda v: v)


def demuon(task, wrong=""):
    beta, M = task.hyper["beta"], [zeros(task.x0)] * len(task.sizes)
    beta = 1 - beta if wrong == "beta reversed" else beta
    unit = lambda k, v: polar(v) if v.ndim > 1 else v / np.linalg.norm(v)

    def direction(v):
        if wrong == "not orthogonalized":
            return {k: a / np.linalg.norm(a) for k, a in v.items()}
        if wrong == "vectors along V":
            return {"w": polar(v["w"]), "b": v["b"]}
        if wrong == "polar before tracking":
            return v
        return {k: unit(k, a) for k, a in v.items()}

    def estimate(t, x):
        nonlocal M
        g = [task.grad(i, y) for i, y in enumerate(x)]
        M = g if wrong == "M begun at the gradient" and t == 0 else M
        mix = lambda a, b: {k: beta * a[k] + (1 - beta) * b[k] for k in a}
        M = [*map(mix, M, g)]
        if wrong == "polar before tracking":
            return [{k: unit(k, a) for k, a in m.items()} for m in M]
        return g if wrong == "no momentum" else M

    return tracking(task, wrong, estimate, direction)


def dpmixsgd(task, wrong=""):
    h, seen = task.hyper, []
    clip, keep = h["clip"], 1 - h["beta"]
    keep = {"beta reversed": 1 - keep, "no STORM": 0, "keeps all": 1}.get(wrong, keep)

    def short(g):
        if wrong == "no clip":
            return g
        if wrong == "players clipped apart":
            return short_to(pick(g, X)) | short_to(pick(g, Y))
        if wrong == "arrays clipped apart":
            return {k: v * min(1, clip / np.linalg.norm(v)) for k, v in g.items()}
        return short_to(g)

    def short_to(g, by=min):
        size = length(g)
        by = max if wrong == "always of the length clip" else by
        factor = clip / size if by is max else min(1, clip / size)
        return {k: factor * v for k, v in g.items()}

    def clipped(i, x, rows):
        if wrong == "the batch clipped":
            return short(task.grad(i, x, rows))
        return mean([short(task.grad(i, x, [row])) for row in rows])

    def estimate(t, x):
        found = []
        for i, y in enumerate(x):
            rows = task.rows[t][i]
            g = clipped(i, y, rows)
            if t:
                points, last = seen[-1]
                at = (
                    task.rows[t - 1][i] if wrong == "old gradient of old rows" else rows
                )
                old = clipped(i, points[i], at)
                old = task.grad(i, points[i], at) if wrong == "old not clipped" else old
                g = add(add(g, last[i], keep), old, -keep)
            found.append(g)
        seen.append((x, found))
        return found

    return tracking(task, wrong, estimate, lambda v: v, rates(h, wrong))


# ------------------------------------------------------------------- asynchronous steps
def arrivals(task, wrong):
    """The weight of a message's staleness, its end, and where it began, by steps."""
    p, last = task.hyper["exponent"], {}
    for r, (cohort, starts) in enumerate(zip(task.cohorts, task.starts, strict=True)):
        models = yield
        found = []
        for i, start in zip(cohort, starts, strict=True):
            late = r - start
            late = max(late, 1) - 1 if wrong == "late by one less" else late
            late = r - last.get(i, 0) if wrong == "since the client's last" else late
            last[i] = r
            s = {
                "off by one": (2 + late) ** -p,
                "no staleness": 1,
                "root's sign": (1 + late) ** p,
                "one over": 1 / (1 + late),
                "hinge": 1 if late < 2 else 1 / late,
                "by round": (1 + r) ** -p,
            }.get(wrong, (1 + late) ** -p)
            at = models[r if wrong == "trains the newest" else start]
            found.append((s, sgd(task, i, at, wrong)[0], models[start]))
        yield found


def fedasync(task, wrong=""):
    x, models, w = dict(task.x0), [dict(task.x0)], task.hyper["weight"]
    steps = arrivals(task, wrong)
    for _ in steps:
        ((s, end, start),) = steps.send(models)
        a = w * s
        a = 1 - a if wrong == "weight of the old model" else a
        from_start = wrong == "change since its start"
        x = add(x, add(end, start if from_start else x, -1), a)
        if wrong == "old model by the weight alone":
            x = add({k: (1 - w) * v for k, v in models[-1].items()}, end, a)
        models.append(x)
        yield x


def fedbuff(task, wrong=""):
    x, models, lr = dict(task.x0), [dict(task.x0)], task.hyper["server_lr"]
    steps = arrivals(task, wrong)
    lr = {"server rate forgotten": 1, "server rate twice": lr**2}.get(wrong, lr)
    for _ in steps:
        found = steps.send(models)
        found = found[:-1] if wrong == "a smaller buffer" else found
        since = lambda start, x=x: x if wrong == "change since now" else start
        deltas = [add(end, since(start), -1) for _, end, start in found]
        s = np.array([s for s, *_ in found])
        s = np.full(len(s), s.min()) if wrong == "that of the latest for all" else s
        by = {"normalized": s.sum(), "sum": 1, "over all": len(task.sizes)}
        change = {k: sum(a * d[k] for a, d in zip(s, deltas, strict=True)) for k in x}
        x = add(x, change, lr / by.get(wrong, len(s)))
        if wrong == "models averaged":
            x = add(
                models[-1], add(mean([e for _, e, _ in found], s), models[-1], -1), lr
            )
        models.append(x)
        yield x


# ----------------------------------------------------------------- compressed messages
def top(x, share, wrong=""):
    """The largest entries of every array."""
    if wrong == "top k of all together":
        flat = np.concatenate([v.ravel() for v in x.values()])
        least = np.sort(abs(flat))[-round(share * flat.size)]
        return {k: v * (abs(v) >= least) for k, v in x.items()}
    found = {}
    for k, v in x.items():
        size = -v if wrong == "smallest values" else abs(v)
        many = round(share * v.size) + (wrong == "k + 1")
        sent = v * (size >= np.sort(size, axis=None)[-many])
        if wrong == "of each row" and v.ndim > 1:
            sent = np.stack([top({"": row}, share)[""] for row in v])
        found[k] = sent / share if wrong == "scaled by 1/share" else sent
    return found


def fedavg_top_k(task, wrong=""):
    x, share = dict(task.x0), task.hyper["share"]
    errors = [zeros(x) for _ in task.sizes]
    for cohort in task.cohorts:
        heard = []
        for i in cohort:
            own = 0 if wrong == "one error for all" else i
            error = errors[own]
            start = add(x, error, -1) if wrong == "trained from x - e" else x
            change = add(start, sgd(task, i, start, wrong)[0], -1)
            factor = {"no feedback": 0, "error twice": 2, "error halved": 0.5}
            whole = add(change, error, factor.get(wrong, 1))
            whole = add(x, change, -1) if wrong == "model compressed" else whole
            heard.append(top(whole, share, wrong))
            base = change if wrong == "old error forgotten" else whole
            sign = -1 if wrong == "error's sign" else 1
            errors[own] = {k: sign * v for k, v in add(base, heard[-1], -1).items()}
        got = mean(heard, [task.sizes[i] for i in cohort])
        got = top(got, share) if wrong == "the mean compressed too" else got
        if wrong == "absent clients forget":
            errors = [e if i in cohort else zeros(x) for i, e in enumerate(errors)]
        x = add(zeros(x), got) if wrong == "model compressed" else add(x, got, -1)
        yield x


def ef21_muon(task, wrong=""):
    h, x, every = task.hyper, dict(task.x0), range(len(task.sizes))
    b = 1 - h["b"] if wrong == "b reversed" else h["b"]
    short = lambda v: {**v, "w": top(v, h["share"])["w"]}
    if "share" not in h:
        short = lambda v: {k: abs(u).mean() * np.sign(u) for k, u in v.items()}
    if wrong == "vectors compressed too":
        short = lambda v: top(v, h["share"])

    def step(x):
        signs = np.sign(G["b"])
        signs = G["b"] if wrong == "vectors along G" else signs
        return {"w": x["w"] - h["lr"] * polar(G["w"]), "b": x["b"] - h["lr"] * signs}

    M = [task.grad(i, x) for i in every]
    own = [short(m) for m in M] if wrong == "the first message compressed" else list(M)
    own = [zeros(x) for _ in every] if wrong == "G begins at zero" else own
    error = [zeros(x) for _ in every]
    G, W = mean(own), x
    x = x if wrong == "no first step" else step(x)
    for cohort in task.cohorts:
        W = add(W, short(add(x, W, -1)))
        W = {"broadcast whole": x, "C(x) sent": short(x)}.get(wrong, W)
        sent = []
        for i in cohort:
            g = task.grad(i, x if wrong == "gradient at x" else W)
            M[i] = {k: (1 - b) * M[i][k] + b * g[k] for k in g}
            M[i] = g if wrong == "no momentum" else M[i]
            R = short(add(M[i], own[i], -1))
            if wrong == "bare signs":
                R = {k: np.sign(v) for k, v in R.items()}
            if wrong == "error feedback of the change":
                R = short(add(add(M[i], own[i], -1), error[i]))
                error[i] = add(add(add(M[i], own[i], -1), error[i]), R, -1)
            own[i] = M[i] if wrong == "own G is M" else add(own[i], R)
            sent.append(R)
        share = 1 if wrong == "G over the cohort" else len(cohort) / len(task.sizes)
        G = add(G, mean(sent), share)
        x = step(x)
        yield x


ef21_muon_signs = ef21_muon


# ------------------------------------------------------------------ models of clients
def fedper(task, wrong=""):
    x, lr = dict(task.x0), task.hyper["lr"]
    heads, bodies = [pick(x, "b")] * len(task.sizes), {}
    for cohort in task.cohorts:
        ends, before = [], list(heads)
        for i in cohort:
            y = x | heads[i] | bodies.get(i, {})
            y = x if wrong == "the server's head" else y
            if wrong == "head first, then body":
                for names in ("b", "w"):
                    for _ in range(task.steps):
                        y = y | pick(add(y, task.grad(i, y), -lr), names)
            else:
                y = sgd(task, i, y, wrong)[0]
            if wrong == "body with the old head":
                end = sgd(task, i, x | heads[i], "bias not trained")[0]
                y = end | pick(y, "b")
            heads[i] = pick(y, "b")
            bodies = bodies | {i: pick(y, "w")} if wrong == "body kept" else bodies
            ends.append(y)
        x = mean(ends)
        if wrong == "head averaged":
            heads = [pick(x, "b")] * len(heads)
        if wrong == "head averaged in the cohort":
            heads = [pick(x, "b") if i in cohort else h for i, h in enumerate(heads)]
        shown = before if wrong == "head reported late" else heads
        x["b"] = task.x0["b"] if wrong == "the server's head" else x["b"]
        yield {"w": x["w"], "own_b": np.stack([h["b"] for h in shown])}


def ditto(task, wrong=""):
    h, x, own = task.hyper, dict(task.x0), [dict(task.x0)] * len(task.sizes)
    pull = {"pull forgotten": 0, "pull doubled": 2, "pull's sign": -1}.get(wrong, 1)
    rate = h["lr"] if wrong == "rate of the shared model" else h["personal_lr"]

    def personal(i, at, end):
        v = {"v begins at x": at, "v begins at x_i": end}.get(wrong, own[i])
        to = {"pull to x_i": end, "pull to the first model": task.x0}.get(wrong, at)
        to = zeros(at) if wrong == "pull to zero" else to
        for _ in range(1 if wrong == "one step of v" else task.steps):
            g = task.grad(i, end if wrong == "gradient at x_i" else v)
            v = add(v, add(g, add(v, to, -1), pull * h["pull"]), -rate)
        return v

    for cohort in task.cohorts:
        ends = [sgd(task, i, x, wrong)[0] for i in cohort]
        new = mean(ends)
        received = new if wrong == "pull to the new model" else x
        trained = range(len(own)) if wrong == "absent clients too" else cohort
        made = {i: personal(i, received, (ends * 2)[j]) for j, i in enumerate(trained)}
        own = [made.get(i, v) for i, v in enumerate(own)]
        x = mean([own[i] for i in cohort]) if wrong == "x of the v" else new
        yield x | {f"own_{k}": v for k, v in stacked(own).items()}
