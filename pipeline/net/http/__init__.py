"""HTTP/1.1: the server of every service with its logins and roles, and requests to other servers."""
