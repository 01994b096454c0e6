"""`pipeline deploy`: files for many hosts, from one description of a company."""
