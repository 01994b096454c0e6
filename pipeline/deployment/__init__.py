"""The description of a company: its datacenters and hosts, and the files of every service that follow from it."""
