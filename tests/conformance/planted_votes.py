"""Small implementations of votes of signs, and mistakes in them."""

import functools

import numpy as np

from tests.conformance.planted import add, mean, message, stacked, zeros


def signs(v):
    return np.where(v < 0, -1.0, 1.0)


def polar(m):
    """Matrices of signs are singular now and then."""
    u, s, vt = np.linalg.svd(m, full_matrices=False)
    return u @ (vt * (s > 1e-6 * s[0])[:, None])


def vote(task, wrong="", before=lambda m: m, after=lambda v: v):
    h, x = task.hyper, dict(task.x0)
    b, M = h["b"], [zeros(task.x0) for _ in task.sizes]
    b = {"b reversed": 1 - b, "no momentum": 1}.get(wrong, b)
    u = zeros(x)
    if wrong == "LMO of clients and server":
        before = after = polar
    for cohort in task.cohorts:
        sent = []
        for i in cohort:
            g = task.grad(i, x)
            if wrong == "gradients clipped":
                g = {k: np.clip(v, -0.1, 0.1) for k, v in g.items()}
            if wrong == "K local steps":
                y = dict(x)
                for _ in range(task.steps):
                    y = add(y, task.grad(i, y), -h["lr"])
                g = add(x, y, -1)
            m = {k: (1 - b) * M[i][k] + b * g[k] for k in x}
            m = add(g, M[i], 0.9) if wrong == "sum" else m
            m = g if wrong == "begun at g" and not M[i]["w"].any() else m
            M[i] = m
            if wrong == "one M for all":
                M = [m] * len(M)
            m = g if wrong == "momentum of the vote" else m
            m = add(add(zeros(x), m, 1 - b), g, b) if wrong == "Nesterov" else m
            d = {"w": before(m["w"]), "b": m["b"]}
            if wrong == "LMO forgotten":
                d = m
            s = {k: signs(v) for k, v in d.items()}
            if wrong == "scaled":
                s = {k: v * abs(d[k]).mean() for k, v in s.items()}
            if wrong == "scaled by the norm":
                s = {k: v * np.linalg.norm(d[k]) for k, v in s.items()}
            s = d if wrong == "no signs by clients" else s
            s["b"] = m["b"] if wrong == "vectors by SGD" else s["b"]
            sent.append(s)
        n = [task.sizes[i] for i in cohort] if wrong == "by examples" else None
        n = [1, 0, 0] if wrong == "the first client decides" else n
        V = mean(sent, n)
        if wrong == "momentum of the vote":
            u = V = {k: (1 - b) * u[k] + b * signs(V[k]) for k in x}
        elif wrong == "unanimous only":
            V = {k: v * (abs(v) > 0.99) for k, v in V.items()}
        elif wrong != "mean of signs":
            V = {k: signs(v) for k, v in V.items()} | (
                {"b": V["b"]} if wrong == "vectors by SGD" else {}
            )
        step = {"w": after(V["w"]), "b": V["b"]}
        rows, cols = step["w"].shape
        step["w"] = step["w"] * {
            "rate by fan-in": cols**-0.5,
            "rate of Jordan": max(1, rows / cols) ** 0.5,
            "rate of Moonlight": 0.2 * max(rows, cols) ** 0.5,
        }.get(wrong, 1)
        if wrong == "server without a sign":
            step["w"] = polar(V["w"])
        if wrong == "decay":
            step = add(step, x, 0.1)
        x = add(x, step, h["lr"] if wrong == "ascends" else -h["lr"])
        yield x


sign_vote = vote
signmuon = functools.partial(vote, before=polar)
muonusign = functools.partial(vote, after=polar)
muonsign = functools.partial(vote, after=lambda v: signs(polar(v)))


def majority(task, wrong=""):
    V = stacked(task)
    sent = signs(V)
    sent = np.sign(V) if wrong == "sign(0) is 0" else sent
    sent = np.where(V > 0, 1, -1) if wrong == "sign(0) is -1" else sent
    sent = V if wrong == "no signs by clients" else sent
    if wrong == "scaled":
        sent = sent * abs(V).mean(1, keepdims=True)
    total = sent.sum(0)
    total = task.weights @ sent if wrong == "by examples" else total
    vote = signs(total)
    vote = np.sign(total) if wrong == "ties stay" else vote
    vote = total / len(V) if wrong == "mean of signs" else vote
    return message(task, vote)
