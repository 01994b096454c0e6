"""One file per api key: its request and response, with the versions served and the KIPs that made them."""
