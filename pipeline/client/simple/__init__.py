"""The low-level consumer: single fetches at offsets that the program keeps."""
