"""Hours of mixed traffic on a server: whether it stays as it was, also where its processes are killed."""
