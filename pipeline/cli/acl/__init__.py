"""`pipeline acl`: its verbs, and what their options mean."""
