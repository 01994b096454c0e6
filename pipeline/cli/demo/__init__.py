"""`pipeline demo`: datacenters, sample input and the run itself."""
