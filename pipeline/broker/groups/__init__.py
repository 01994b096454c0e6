"""Consumer groups: their members and generations, and the offsets they commit."""
