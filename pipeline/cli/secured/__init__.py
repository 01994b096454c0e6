"""Security of clusters on this machine: authority, certificates, users, ACLs, and files of client settings."""
