"""What runs inside Triton, free of Triton: requests, errors, loops, parts, the server's launcher."""
