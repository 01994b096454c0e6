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

class LZ4FrameDecompressor:
    eof: bool
    needs_input: bool
    unused_data: bytes | None
    def decompress(self, data: Buffer, max_length: int = -1) -> bytes: ...
