# docker build -t clustersim .                          the command alone
# docker build -t clustersim --build-arg EXTRAS=mcp .   with extras, several with commas
# docker run --rm -v "$PWD:/work" clustersim run job.yaml
FROM python:3.13-slim AS build
ARG EXTRAS=""
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY simulator simulator
COPY hardware_profiles hardware_profiles
COPY workloads workloads
RUN python -m venv /opt/clustersim \
    && /opt/clustersim/bin/pip install --no-cache-dir ".${EXTRAS:+[$EXTRAS]}"

FROM python:3.13-slim
COPY --from=build /opt/clustersim /opt/clustersim
RUN useradd --create-home --uid 1000 clustersim
ENV PATH=/opt/clustersim/bin:$PATH MPLCONFIGDIR=/tmp/matplotlib
USER clustersim
WORKDIR /work
ENTRYPOINT ["clustersim"]
CMD ["--help"]
