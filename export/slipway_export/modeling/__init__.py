"""Networks, and views of networks, that no library has in the form that a graph needs."""
