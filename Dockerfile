# The server: docker build -t tardis-machine .
# With Spark and Java, for the lakehouse: docker build --target spark -t tardis-machine:spark .
# The same Debian as below: the kernel that is compiled here finds its libraries there.
FROM rust:1.90-slim-trixie AS wheel
WORKDIR /src
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-pip \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir --break-system-packages "hatchling>=1.27"
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY kernel kernel
COPY src src
RUN TM_KERNEL=compiled pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist .

FROM python:3.13-slim-trixie AS base
RUN useradd --create-home --uid 10001 tardis && install --directory --owner tardis /data
COPY requirements/server.txt /tmp/server.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/server.txt
ENV TM_HOST=0.0.0.0 \
    TM_CACHE_DIR=/data/cache \
    TM_JOURNAL_DIR=/data/journal \
    TM_JARS_DIR=/data/jars \
    PYTHONUNBUFFERED=1
WORKDIR /data
VOLUME /data
EXPOSE 8000 8001
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request as r; e = os.environ.get; r.urlopen('http://127.0.0.1:' + (e('PORT') or e('TM_PORT') or '8000') + '/health-check', timeout=4)"]
ENTRYPOINT ["tardis-machine"]

FROM base AS spark
# Debian's newest headless Java: whatever is 17 or newer serves.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/spark.txt /tmp/spark.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/spark.txt
COPY --from=wheel /dist /dist
RUN pip install --no-cache-dir --no-deps /dist/*.whl
USER 10001

FROM base AS server
COPY --from=wheel /dist /dist
RUN pip install --no-cache-dir --no-deps /dist/*.whl
USER 10001
