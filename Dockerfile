# Three stages: `build` makes the wheel, `gateway` serves it, `engine` adds it to the official vLLM image.
#   docker build --target gateway -t reprise .
#   docker build --target engine -t reprise-engine .

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /venv
COPY requirements.lock ./
RUN /venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY app app
# Without build isolation: the build backend is in the lock file, with its hash.
RUN /venv/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /venv/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl \
    && /venv/bin/pip uninstall --yes flit_core pip


FROM vllm/vllm-openai:v0.32.0 AS engine
USER 0:0
# Without dependencies: the guard and the plugin need the standard library alone, and vLLM's pins stay as they are.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    uv pip install --system --no-cache --no-deps --no-index /wheels/*.whl \
    && install -d -m 0775 -o 2000 -g 0 /home/vllm /home/vllm/.cache /home/vllm/.cache/huggingface
# torch asks the system for the user's name unless the environment says it.
ENV HOME=/home/vllm USER=vllm LOGNAME=vllm VLLM_NO_USAGE_STATS=1
WORKDIR /home/vllm
USER 2000:0
EXPOSE 8001
HEALTHCHECK --interval=10s --timeout=3s --start-period=15m \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8001/health', timeout=2)"]
ENTRYPOINT ["reprise", "engine"]


# Last, so that a build without --target makes the gateway.
FROM python:3.12-slim AS gateway
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin reprise \
    && install -d -m 0750 -o 10001 /var/lib/reprise
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 REPRISE_STATE_DIR=/var/lib/reprise
# The only place that is written to: everything else may be mounted read-only.
VOLUME ["/var/lib/reprise"]
WORKDIR /var/lib/reprise
USER 10001:10001
EXPOSE 8000
# Liveness, not readiness: it must not depend on replicas.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
ENTRYPOINT ["reprise", "serve"]
CMD ["--host", "0.0.0.0", "--port", "8000"]
