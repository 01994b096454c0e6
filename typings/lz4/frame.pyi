from typing_extensions import Buffer

BLOCKSIZE_MAX64KB: int

def compress(
    data: Buffer,
    compression_level: int = 0,
    block_size: int = 0,
    content_checksum: bool = False,
    block_checksum: bool = False,
    block_linked: bool = True,
    store_size: bool = True,
    return_bytearray: bool = False,
) -> bytes: ...

class LZ4FrameCompressor:
    def __init__(self, block_size: int = 0, block_linked: bool = True, compression_level: int = 0) -> None: ...
    def begin(self, source_size: int = 0) -> bytes: ...
    def compress(self, data: Buffer) -> bytes: ...
    def flush(self) -> bytes: ...

class LZ4FrameDecompressor:
    eof: bool
    needs_input: bool
    unused_data: bytes | None
    def decompress(self, data: Buffer, max_length: int = -1) -> bytes: ...
