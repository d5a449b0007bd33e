"""Small worlds seen from above, which slide under whoever walks, drives or runs in them."""
