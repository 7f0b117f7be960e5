# Convtwins for CPUs, with both frameworks. Results go to /work, data and proofs to /cache:
#
#     docker build -t convtwins .
#     docker run --rm -v "$PWD:/work" -v convtwins-cache:/cache --user "$(id -u):$(id -g)" convtwins run --preset digits
#
# PyTorch and Dask pass batches through shared memory: --shm-size 1g for inputs with workers.
FROM python:3.13-bookworm AS build
# The packages of a lock of the repository, with their hashes.
ARG LOCK=locks/cpu.lock
ENV PATH=/opt/convtwins/bin:$PATH
WORKDIR /src
COPY ${LOCK} lock.txt
RUN python -m venv /opt/convtwins \
    && pip install --no-cache-dir --no-deps --require-hashes --requirement lock.txt
# With .git, from which the package takes the commit that results name. Git refuses a repository of another owner.
COPY . .
RUN git config --global --add safe.directory /src \
    && pip install --no-cache-dir --no-index --no-deps --no-build-isolation . ./plugins/hangs ./plugins/keras_twin

FROM python:3.13-slim-bookworm
COPY --from=build /opt/convtwins /opt/convtwins
# XDG_CACHE_HOME is for proofs and the caches of libraries. HOME is for what else they write: a user of `--user` has no other.
ENV PATH=/opt/convtwins/bin:$PATH \
    CONVTWINS_CACHE=/cache \
    XDG_CACHE_HOME=/cache \
    HOME=/tmp
RUN useradd --create-home --uid 1000 --home-dir /work convtwins \
    && install --directory --mode=1777 /cache
WORKDIR /work
USER 1000
ENTRYPOINT ["convtwins"]
CMD ["--help"]
