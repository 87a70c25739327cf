# Serves the shipped models: docker build -t regard . && docker run -p 8000:8000 -e REGARD_TOKEN=... regard
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
# --build-arg PIP_EXTRA_INDEX_URL=URL: where pip finds PyTorch's CPU build, which is much smaller than the one with CUDA.
ARG PIP_EXTRA_INDEX_URL
RUN python -m venv /opt/regard \
    && /opt/regard/bin/pip install --no-cache-dir -c constraints.txt ".[serve]"

FROM python:3.12-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 regard
COPY --from=build /opt/regard /opt/regard
ENV PATH=/opt/regard/bin:$PATH PYTHONUNBUFFERED=1
USER regard
WORKDIR /home/regard
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
# Exec form: the server gets SIGTERM itself, and finishes what it has begun.
ENTRYPOINT ["regard", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["de-en"]
