"""How a request under way is ended by another one, so that its call need not be cut."""
