"""Networks, and wrappers of library networks, in the form that an exported graph needs."""
