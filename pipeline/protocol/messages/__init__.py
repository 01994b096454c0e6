"""Api keys, one file each: request and response, the versions served, and the KIPs that made them."""
