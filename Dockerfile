# An index behind HTTP, on CPU, as a user without rights. The index is mounted, not built in:
#
#   docker build -t laplace-metric .
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/index:/srv/index:ro" \
#     -v "$PWD/my_model.py:/srv/my_model.py:ro" -v "$PWD/weights.pt:/srv/weights.pt:ro" \
#     -v "$PWD/key:/srv/key:ro" laplace-metric --api-key-file key --trust-recipe --precision 0.95
#
# Requests send the key of the file; --insecure in its place lets everybody in who reaches the port.
#
# What stands behind the image's name are options of `laplace-metric serve`; an index of embeddings
# needs no model. `docker stop` answers what was asked.
FROM python:3.12-slim

# hadolint ignore=DL3013
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch

WORKDIR /source
COPY pyproject.toml README.md ./
COPY laplace_metric laplace_metric
# pyproject.toml names the versions
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ".[serve,faiss]" && rm -rf /source

RUN useradd --create-home --uid 10001 served
USER 10001
WORKDIR /srv
ENV PYTHONUNBUFFERED=1

EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=60s CMD ["python", "-c", \
  "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
ENTRYPOINT ["laplace-metric", "serve", "index", "--host", "0.0.0.0"]
