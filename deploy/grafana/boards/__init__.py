"""The Grafana dashboards as code: their queries can only name series that the gateway or the pinned vLLM has."""
