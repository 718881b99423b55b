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
        ends, sizes = [], [task.sizes[i] for i in cohort]
        for i in cohort:
            y = {**z, **kept.get(i, {})}
            for k in range(task.steps - (wrong == "a step less")):
                g = task.grad(i, y)
                if wrong == "gradient of y at the server's model":
                    g |= pick(task.grad(i, z), Y)
                if wrong == "extragradient":
                    g = task.grad(i, moved(y, rate, g))
                if wrong == "x first":
                    g |= pick(task.grad(i, y | pick(moved(y, rate, g), X)), Y)
                if wrong == "y first":
                    g |= pick(task.grad(i, y | pick(moved(y, rate, g), Y)), X)
                if wrong == "y moves once" and k:
                    g |= zeros(pick(y, Y))
                y = moved(y, rate, g)
            if wrong == "y stays with clients":
                kept[i] = pick(y, Y)
            ends.append(y)
        new = mean(ends, sizes if wrong == "by examples" else None)
        if wrong == "y over all clients":
            share = len(cohort) / len(task.sizes)
            new |= pick(add(z, add(new, z, -1), share), Y)
        if wrong == "c of one client":
            new["c"] = ends[0]["c"]
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
        part = 1 if wrong == "g over the cohort" else len(cohort) / N
        after = add(g, news, part)
        u = mix(after if wrong == "momentum of the new g" else add(g, news), u)
        u = add(after, zeros(z)) if wrong == "no momentum" else u
        g, own = after, fresh
        if wrong == "absent clients forget":
            own = [own[i] if i in cohort else zeros(z) for i in range(N)]
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
        if wrong == "vectors by sign":
            return right | {k: np.sign(d[k]) for k in ("b", "c")}
        if wrong == "y not orthogonalized":
            return right | {"v": d["v"]}
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
    kinds |= {"mean of all": np.full(W.shape, 1 / len(W))}
    kinds |= {"neighbors alike": (W > 0) / (W > 0).sum(1, keepdims=True)}
    W = kinds.get(wrong, W)
    return lambda trees: [
        {k: np.tensordot(row, [t[k] for t in trees], 1) for k in trees[0]} for row in W
    ]


stacked = lambda trees: {k: np.stack([t[k] for t in trees]) for k in trees[0]}


def dsgd(task, wrong=""):
    mix, m, lr = network(task, wrong), len(task.sizes), task.hyper["lr"]
    x = [dict(task.x0)] * m
    lr = {"rate times m": lr * m, "rate by W": lr * task.mixing[0, 0]}.get(wrong, lr)
    for t in range(task.iterations):
        at = mix(x) if wrong == "gradient at the mixed point" else x
        half = [add(x[i], task.grad(i, at[i]), -lr) for i in range(m)]
        if wrong == "another step":
            half = [add(half[i], task.grad(i, half[i]), -lr) for i in range(m)]
        new = mix(half)
        if wrong in ("step not mixed", "gradient at the mixed point"):
            start = mix(x)
            new = [add(start[i], task.grad(i, at[i]), -lr) for i in range(m)]
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
        if wrong == "change not mixed":
            new = [add(a, b) for a, b in zip(mix(v), change, strict=True)]
        new = {"no tracking": g, "gradients mixed": mix(g)}.get(wrong, new)
        along = v if wrong == "steps along the old tracker" else new
        half = [moved(x[i], rate, direction(along[i])) for i in range(m)]
        before, x, v, old = x, mix(half), new, g
        if wrong == "x not mixed":
            x = half
        if wrong == "step not mixed":
            x = [
                add(a, add(h, b, -1))
                for a, h, b in zip(mix(before), half, before, strict=True)
            ]
        if wrong == "tracker replaced every second time" and t % 2:
            v = g
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
        if wrong == "Nesterov":
            return [*map(mix, M, g)]
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
    for r, _ in enumerate(steps):
        found = steps.send(models)
        found = found[:-1] if wrong == "a smaller buffer" else found
        since = lambda start, x=x: x if wrong == "change since now" else start
        deltas = [add(end, since(start), -1) for _, end, start in found]
        s = np.array([s for s, *_ in found])
        s = np.full(len(s), s.min()) if wrong == "that of the latest for all" else s
        if wrong == "by examples":
            n = np.array([task.sizes[i] for i in task.cohorts[r]])
            s = s * n / n.mean()
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
        got = mean(
            heard, None if wrong == "uniform" else [task.sizes[i] for i in cohort]
        )
        got = top(got, share) if wrong == "the mean compressed too" else got
        if wrong == "absent clients forget":
            errors = [e if i in cohort else zeros(x) for i, e in enumerate(errors)]
        x = add(zeros(x), got) if wrong == "model compressed" else add(x, got, -1)
        yield x


def ef21_muon(task, wrong=""):
    h, x, every = task.hyper, dict(task.x0), range(len(task.sizes))
    b = 1 - h["b"] if wrong == "b reversed" else h["b"]
    short = lambda v: {**v, "w": top(v, h["share"])["w"]}
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
            if wrong == "error feedback of the change":
                R = short(add(add(M[i], own[i], -1), error[i]))
                error[i] = add(add(add(M[i], own[i], -1), error[i]), R, -1)
            own[i] = M[i] if wrong == "own G is M" else add(own[i], R)
            sent.append(R)
        share = 1 if wrong == "G over the cohort" else len(cohort) / len(task.sizes)
        G = add(G, mean(sent), share)
        x = step(x)
        yield x


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
        sizes = [task.sizes[i] for i in cohort]
        x = mean(ends, sizes if wrong == "by examples" else None)
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


# vectors, the mistake, what the verdict has to say; None where it names nothing
KNOWN = [
    ("local_sgda", "x first", "order: x, then y"),
    ("local_sgda", "y descends", "y: descends"),
    ("local_sgda", "rates swapped", "rates: swapped"),
    ("local_sgda", "a step less", "steps: K - 1"),
    ("local_sgda", "gradient of y at the server's model", "of y at the server's"),
    ("fed_nsgda_m", "no correction", "correction: none"),
    ("fed_nsgda_m", "own control not subtracted", "correction: grad + g"),
    ("fed_nsgda_m", "b reversed", "b: weighs the old"),
    ("fed_nsgda_m", "norms of arrays", "norm: of each array"),
    ("fed_nsgda_m", "one norm", "norm: of x and y together"),
    ("fed_nsgda_m", "g over the cohort", "changes / S"),
    ("fed_nsgda_m", "b in round 1 too", "first round: weight b"),
    ("fedmuon_da", "vectors along u", "vectors: along the momentum"),
    ("fedmuon_da", "y descends", "y: descends"),
    ("fedmuon_da", "rates swapped", "rates: swapped"),
    ("dsgd", "W transposed", "W: transposed"),
    ("dsgd", "no mixing", "W: none"),
    ("dsgd", "mean of all", "W: 1/m"),
    ("dsgd", "step not mixed", "order: W x - lr g(x)"),
    ("dsgd", "gradient at the mixed point", "order: W x - lr g(W x)"),
    ("gradient_tracking", "no tracking", "tracker: g, "),
    ("gradient_tracking", "old gradient not subtracted", "tracker: W (v + g)"),
    ("gradient_tracking", "tracker not mixed", "tracker: g, "),
    ("gradient_tracking", "x not mixed", "tracker: g, "),
    ("gradient_tracking", "W transposed", "W: transposed"),
    ("demuon", "beta reversed", "M: (1-beta) M + beta g"),
    ("demuon", "no momentum", "M: none"),
    ("demuon", "not orthogonalized", "norm: Frobenius"),
    ("demuon", "vectors along V", "vectors: along V"),
    ("demuon", "x not mixed", "x: x - lr v, not mixed"),
    ("dpmixsgd", "no clip", "clip: none"),
    ("dpmixsgd", "the batch clipped", "clip: the batch"),
    ("dpmixsgd", "players clipped apart", "clip: each example, each player"),
    ("dpmixsgd", "beta reversed", "estimate: beta weighs"),
    ("dpmixsgd", "no STORM", "estimate: g, "),
    ("dpmixsgd", "W transposed", "W: transposed"),
    ("fedasync", "off by one", "staleness: (2 + late)^-p"),
    ("fedasync", "no staleness", "staleness: none"),
    ("fedasync", "root's sign", "staleness: (1 + late)^p"),
    ("fedasync", "weight of the old model", "server: a x + (1 - a) x_i"),
    ("fedasync", "change since its start", "server: x + a (x_i - models[start])"),
    ("fedbuff", "off by one", "staleness: (2 + late)^-p"),
    ("fedbuff", "no staleness", "staleness: none"),
    ("fedbuff", "normalized", "mean: by the sum of the weights"),
    ("fedbuff", "sum", "mean: a sum"),
    ("fedbuff", "server rate forgotten", "server rate: not used"),
    ("fedbuff", "server rate twice", "server rate: used twice"),
    ("fedavg_top_k", "no feedback", "error: none"),
    ("fedavg_top_k", "old error forgotten", "error: message - sent"),
    ("fedavg_top_k", "error twice", "error: 2 e + message"),
    ("fedavg_top_k", "one error for all", "error: of all clients together"),
    ("fedavg_top_k", "top k of all together", "kept: of all arrays together"),
    ("fedavg_top_k", "uniform", "weights: uniform"),
    ("ef21_muon", "b reversed", "b: weighs the old momentum"),
    ("ef21_muon", "G over the cohort", "G: G + sum(R) / S"),
    ("ef21_muon", "vectors along G", "vectors: along G"),
    ("ef21_muon", "no first step", "first step: none"),
    ("ef21_muon", "broadcast whole", "broadcast: x"),
    ("fedper", "head averaged", "head: averaged for all"),
    ("fedper", "the server's head", "head: begun anew"),
    ("fedper", "by examples", "weights: by examples"),
    ("ditto", "pull forgotten", "pull: none"),
    ("ditto", "pull doubled", "pull: 2 pull"),
    ("ditto", "pull to the new model", "anchor: the new model"),
    ("ditto", "pull to x_i", "anchor: the client's x_i"),
    ("ditto", "v begins at x", "v begins: at x"),
    ("ditto", "x of the v", "server: mean of v_i"),
]
UNSEEN = [
    ("local_sgda", "extragradient", None),
    ("local_sgda", "y first", "order: y, then x"),
    ("local_sgda", "y moves once", None),
    ("local_sgda", "y stays with clients", "y kept by the client"),
    ("local_sgda", "y over all clients", "step of v: 0.6 = S/N"),
    ("local_sgda", "c of one client", None),
    ("local_sgda", "one rate", "rates: lr_x for both"),
    ("fed_nsgda_m", "momentum of the steps", "momentum: refreshed by every step"),
    ("fed_nsgda_m", "control of the last step", "g_i: the last gradient"),
    ("fed_nsgda_m", "at x", "g_i: the first gradient"),
    ("fed_nsgda_m", "server's rate on x alone", "step of v: 0.8333 = 1/"),
    ("fed_nsgda_m", "y with x's b", "b: b_x for both"),
    ("fed_nsgda_m", "momentum of the new g", None),
    ("fed_nsgda_m", "not normalized", "norm: none"),
    ("fed_nsgda_m", "no momentum", None),
    ("fedmuon_da", "sign of the correction", "correction: the sign flipped"),
    ("fedmuon_da", "orthogonalized before the momentum", None),
    ("fedmuon_da", "absent clients forget", "g_i set to 0"),
    ("fedmuon_da", "vectors by sign", "vectors: signs"),
    ("fedmuon_da", "y not orthogonalized", None),
    ("fedmuon_da", "norms of arrays", "norm: Frobenius"),
    ("dsgd", "W without itself", None),
    ("dsgd", "W twice", "W: mixed twice"),
    ("dsgd", "neighbors alike", "W: uniform over neighbors"),
    ("dsgd", "rate times m", "rate: lr m"),
    ("dsgd", "rate by W", "step of w: 0.45 times"),
    ("dsgd", "another step", None),
    ("dsgd", "neighbors' old models", "W_ii (x_i - lr g_i)"),
    ("dsgd", "one after another", None),
    ("dsgd", "mixing in every second iteration", "mixing: in every second"),
    ("gradient_tracking", "change not mixed", "tracker: W v + g - g_"),
    ("gradient_tracking", "gradients mixed", "tracker: W g"),
    ("gradient_tracking", "steps along the old tracker", None),
    ("gradient_tracking", "step not mixed", "or W x - lr v"),
    ("gradient_tracking", "tracker replaced every second time", None),
    ("gradient_tracking", "W without itself", None),
    ("demuon", "polar before tracking", None),
    ("demuon", "M begun at the gradient", "M: begun at the gradient"),
    ("demuon", "Nesterov", None),
    ("demuon", "change not mixed", "tracker: W v + g - g_"),
    ("demuon", "step not mixed", "x: W x - lr v"),
    ("dpmixsgd", "arrays clipped apart", "each array apart"),
    ("dpmixsgd", "always of the length clip", "to the length clip"),
    ("dpmixsgd", "keeps all", "estimate: g + old estimate"),
    ("dpmixsgd", "old gradient of old rows", "estimate: g, "),
    ("dpmixsgd", "old not clipped", None),
    ("dpmixsgd", "rates swapped", "rates: swapped"),
    ("dpmixsgd", "no tracking", "tracker: g, "),
    ("fedasync", "trains the newest", "clients begin: at the newest"),
    ("fedasync", "late by one less", "staleness: max(1, late)^-p"),
    ("fedasync", "one over", "staleness: 1/(1 + late)"),
    ("fedasync", "hinge", None),
    ("fedasync", "since the client's last", None),
    ("fedasync", "old model by the weight alone", "server: (1 - weight) x + a x_i"),
    ("fedasync", "a step less", "steps: K - 1"),
    ("fedbuff", "trains the newest", "clients begin: at the newest"),
    ("fedbuff", "by round", None),
    ("fedbuff", "change since now", "change: x_i - x"),
    ("fedbuff", "models averaged", "change: x_i - x"),
    ("fedbuff", "over all", "mean: over all clients"),
    ("fedbuff", "a smaller buffer", "weights: [0.5, 0.5, "),
    ("fedbuff", "that of the latest for all", None),
    ("fedbuff", "by examples", "weights: by examples"),
    ("fedbuff", "loss halved", "loss: half"),
    ("fedavg_top_k", "smallest values", None),
    ("fedavg_top_k", "k + 1", "kept: one more"),
    ("fedavg_top_k", "of each row", "kept: of every row"),
    ("fedavg_top_k", "scaled by 1/share", "kept: times 1/share"),
    ("fedavg_top_k", "trained from x - e", None),
    ("fedavg_top_k", "error halved", "error: e/2 + message"),
    ("fedavg_top_k", "model compressed", None),
    ("fedavg_top_k", "error's sign", "error: sent - message - e"),
    ("fedavg_top_k", "the mean compressed too", "server: the mean compressed too"),
    ("fedavg_top_k", "absent clients forget", "error: 0 for absent"),
    ("ef21_muon", "the first message compressed", "start: G_i = C(M_i)"),
    ("ef21_muon", "G begins at zero", "start: G_i = 0"),
    ("ef21_muon", "C(x) sent", "broadcast: C(x)"),
    ("ef21_muon", "gradient at x", "broadcast: x"),
    ("ef21_muon", "no momentum", "b: 1"),
    ("ef21_muon", "error feedback of the change", None),
    ("ef21_muon", "own G is M", "G_i: M"),
    ("ef21_muon", "vectors compressed too", None),
    ("fedper", "head averaged in the cohort", "head: averaged for the cohort"),
    ("fedper", "head first, then body", "order: K steps of the head"),
    ("fedper", "body with the old head", None),
    ("fedper", "body kept", None),
    ("fedper", "head reported late", None),
    ("fedper", "momentum", "momentum: 0.9"),
    ("ditto", "pull's sign", "pull: the sign flipped"),
    ("ditto", "pull to zero", "anchor: zero"),
    ("ditto", "pull to the first model", "anchor: the first model"),
    ("ditto", "rate of the shared model", "personal rate: lr"),
    ("ditto", "v begins at x_i", "v begins: at x_i"),
    ("ditto", "one step of v", None),
    ("ditto", "gradient at x_i", "gradient: at x_i"),
    ("ditto", "absent clients too", None),
]
