"""Reading of the audit topics of all clusters."""
