"""Model repositories: staging, resumption, identity, configuration and atomic publication."""
