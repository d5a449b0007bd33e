"""One component as each engine serves it."""
