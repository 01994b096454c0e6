"""Record batches (format v2) from inside: header, checksum, compression, columns. Pure functions of bytes."""
