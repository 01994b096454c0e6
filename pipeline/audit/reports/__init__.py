"""Documents of judgements: what the HTTP API, the commands and the daily reports show."""
