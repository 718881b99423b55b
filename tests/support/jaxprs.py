"""What a traced program computes, with the programs within it."""

import jax


def equations(program, platform="cpu"):
    """All of a program on a platform, with those of the programs within."""
    for equation in program.eqns:
        yield equation
        params = dict(equation.params)
        if params.get("branches_platforms"):
            pairs = zip(params["branches"], params["branches_platforms"], strict=True)
            params = {"branches": next(b for b, p in pairs if not p or platform in p)}
        for value in jax.tree.leaves(list(params.values())):
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                program = value if hasattr(value, "eqns") else value.jaxpr
                yield from equations(program, platform)


def products(program, platform="cpu"):
    names = ("dot_general", "conv_general_dilated")
    return [e for e in equations(program, platform) if e.primitive.name in names]
