"""What lies inside a record batch (format v2): header, checksum, compression, columns. Pure functions of bytes."""
