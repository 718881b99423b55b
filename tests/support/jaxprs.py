"""What a traced program computes, with the programs within it."""

import jax


def equations(program):
    """All of a program, with those of the programs within."""
    for equation in program.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values())):
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                yield from equations(value if hasattr(value, "eqns") else value.jaxpr)


def products(program):
    names = ("dot_general", "conv_general_dilated")
    return [e for e in equations(program) if e.primitive.name in names]
