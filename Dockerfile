# No image was built from this file where it was written: no Docker engine runs there, so
# that no base image could be fetched. Its commands are the README's first command.
#
# For CPUs, and for NVIDIA GPUs with CUDA 12 or 13:
#
#     docker build --tag fedjax_muon .
#     docker build --tag fedjax_muon --build-arg JAX_EXTRA=cuda13 .

FROM python:3.12-slim

# An extra of jax: empty for CPUs, "cuda12" or "cuda13" for GPUs.
ARG JAX_EXTRA=""

ENV PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

WORKDIR /src
COPY . .
RUN pip install .
# jax is installed in an allowed version by now, which this keeps.
RUN if [ -n "${JAX_EXTRA}" ]; then pip install "jax[${JAX_EXTRA}]"; fi

RUN useradd --create-home user
USER user
WORKDIR /home/user
# A volume that is mounted here belongs to the user.
RUN mkdir runs

CMD ["fedjax-muon", "compare"]
