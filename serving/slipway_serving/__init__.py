"""What runs inside Triton, free of Triton: requests, errors, loops, media, the server's launcher."""
