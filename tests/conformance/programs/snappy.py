"""The two functions of python-snappy that kafka-python calls; python-snappy 0.7 is itself a layer over cramjam."""

import cramjam


def compress(data):
    return bytes(cramjam.snappy.compress_raw(data))


def decompress(data):
    return bytes(cramjam.snappy.decompress_raw(data))
