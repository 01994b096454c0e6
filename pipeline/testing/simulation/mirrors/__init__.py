"""A simulated site: live clusters and a hub, mirrors between them, and the rules that replicas and lags must keep."""
