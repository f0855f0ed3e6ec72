# The gateway as an image: no root, no build tools, no database.
#
#   docker build -t fencegate:dev .
#   docker run --rm fencegate:dev --help
#
# docker-compose.yml runs two of them; docs/settings.md says how.

# The version that the tests run on.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /src
# Without pip inside: what is copied below can run the gateway and install nothing.
RUN python -m venv --without-pip /opt/fencegate
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gateway gateway
COPY migrations migrations
COPY policies policies
COPY examples examples
RUN python -m pip --python /opt/fencegate/bin/python install --no-cache-dir -c constraints.txt .

FROM python:${PYTHON}-slim
COPY --from=build /opt/fencegate /opt/fencegate
# The one folder that its user may write to. The gateway needs none; the demo API keeps its ledger
# there.
RUN install -d -o 10001 -g 10001 /data
ENV PATH=/opt/fencegate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    FENCEGATE_POLICIES_DIR=/etc/fencegate/policies
# By number: an orchestrator that insists on "not root" cannot look up a name.
USER 10001:10001
WORKDIR /data
EXPOSE 8080
# Ready, not merely alive: its keys are fresh and its database takes writes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "from http.client import HTTPConnection as C; c = C('127.0.0.1', 8080, timeout=4); c.request('GET', '/readyz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["fencegate"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
