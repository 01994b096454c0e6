"""File systems that hold the loaded data."""
