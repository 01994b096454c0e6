"""`pipeline mirror`: the service, and the commands of its operators."""
