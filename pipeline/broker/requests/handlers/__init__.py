"""One file per api key: the request comes in, a decision is taken, the response goes out."""
